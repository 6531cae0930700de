"""Going through an experiment's settings and keeping the results; what `oplab record` does."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from tqdm.auto import tqdm

from oplab import timing
from oplab.experiments import recording as recordings
from oplab.experiments.experiment import Experiment
from oplab.experiments.result import LIVE_CPU, LIVE_GPU, RECORDED, Result
from oplab.machine import Machine, machine, versions

SAVE_EVERY = 20.0  # seconds; what an interrupted recording can lose at most

# What people read, in one place.
TEXT = {
    "other": "{path} was recorded on {there} and this is {here}; give another --name, or --restart to replace it",
    "resume": "{done} of {total} settings are in {path} already",
    "compiling": "compiling {name} for {cores} cores",
    "measuring": "recording {name}",
}


def record(
    experiment: Experiment, *, name: str | None = None, folder: Path = recordings.FOLDER, restart: bool = False
) -> Path:
    """Measure every setting of ``experiment`` and write ``folder/name/<experiment>.json``.

    Interrupted, it keeps what it has; called again, it goes on. ValueError when the file belongs to
    another machine or to other library versions.
    """
    source = LIVE_GPU if torch.cuda.is_available() else LIVE_CPU
    here = machine()
    path = folder / (name or slug(here.name)) / f"{experiment.name}.json"
    settings = list(experiment.settings(source))
    done = [] if restart else _already(path, here, experiment)
    have = [result.knobs for result in done]
    missing = [knobs for knobs in settings if knobs not in have]
    if done:
        print(TEXT["resume"].format(done=len(settings) - len(missing), total=len(settings), path=path), file=sys.stderr)
    if source == LIVE_GPU and missing:
        compile_all(experiment, missing)

    def keep() -> None:
        today = datetime.date.today().isoformat()
        recordings.save(path, experiment=experiment.name, machine=here, date=today, commit=_commit(), results=done)

    saved = time.monotonic()
    try:
        for knobs in tqdm(missing, desc=TEXT["measuring"].format(name=experiment.name), file=sys.stderr):
            result = experiment.run(source=source, **knobs)
            done.append(replace(result, source=RECORDED))
            if time.monotonic() - saved > SAVE_EVERY:
                keep()
                saved = time.monotonic()
    finally:
        if done:
            keep()
    return path


def slug(name: str) -> str:
    """A folder name for a device: ``slug("NVIDIA H200") == "nvidia-h200"``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _already(path: Path, here: Machine, experiment: Experiment) -> list[Result]:
    if not path.exists():
        return []
    found = recordings.load(experiment.name, path.parent.name, path.parent.parent)
    there = (found.machine.name, found.machine.driver, found.versions)
    if there != (here.name, here.driver, versions()):
        raise ValueError(TEXT["other"].format(path=path, there=there, here=(here.name, here.driver, versions())))
    return list(found.results)


def compile_all(experiment: Experiment, settings: list[dict]) -> None:
    """Fill Triton's cache on all cores, so that the GPU is not waiting for the compiler."""
    if type(experiment).compile is Experiment.compile:
        return
    cores = os.cpu_count() or 1
    # spawn: a forked child cannot use CUDA.
    with ProcessPoolExecutor(cores, mp_context=multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(_compile, experiment, knobs) for knobs in experiment.distinct_kernels(settings)]
        for job in tqdm(jobs, desc=TEXT["compiling"].format(name=experiment.name, cores=cores), file=sys.stderr):
            job.result()


def _compile(experiment: Experiment, knobs: dict) -> None:
    try:
        experiment.compile(knobs)
    except Exception as error:  # it fails again when it is measured, and is recorded with its reason
        timing.report(f"{knobs}: {error}")


def _commit() -> str:
    """``$OPLAB_COMMIT`` where the working tree was copied to the GPU's machine, else what git says."""
    if named := os.environ.get("OPLAB_COMMIT"):
        return named
    done = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"
