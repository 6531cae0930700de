"""Set-up for all tests: caches and locks of their own, so that a test run neither reads nor leaves anything behind."""

import os
import tempfile

_scratch = tempfile.mkdtemp(prefix="oplab-tests-")
os.environ.setdefault("OPLAB_CACHE_DIR", os.path.join(_scratch, "cache"))
os.environ.setdefault("OPLAB_LOCK_DIR", os.path.join(_scratch, "locks"))
os.environ.setdefault("TQDM_DISABLE", "1")
