"""A question to commit to before measuring: nothing teaches like having been wrong."""

from __future__ import annotations

from html import escape

import ipywidgets as w

# What people read, in one place.
TEXT = {
    "prompt": "Your prediction",
    "committed": "You said: {choice}. Now measure.",
    "nothing": "You made no prediction. Measured: {measured}.",
    "right": "You said {choice}, and it is. Measured: {measured}.",
    "wrong": "You said {choice}; it is {answer}. Measured: {measured}.",
}


class Prediction:
    """A committed answer. ``value`` is None until the learner chooses; the first choice stands."""

    def __init__(self, question: str, options: tuple[str, ...]) -> None:
        self.question, self.options = question, options
        self.value: str | None = None
        self.buttons = [w.Button(description=option, layout={"width": "auto"}) for option in options]
        for button in self.buttons:
            button.on_click(lambda clicked: self.commit(clicked.description))
        self.answer = w.HTML()
        self.box = w.VBox(
            [
                w.HTML(f"<b>{TEXT['prompt']}:</b> {escape(question)}"),
                w.HBox(self.buttons, layout={"flex_flow": "row wrap"}),
                self.answer,
            ]
        )

    def commit(self, choice: str) -> None:
        """Choose; a second choice changes nothing. ValueError for something that was not offered."""
        if choice not in self.options:
            raise ValueError(f"{choice!r} is not one of {', '.join(self.options)}")
        if self.value is not None:
            return
        self.value = choice
        for button in self.buttons:
            button.disabled = True
            if button.description == choice:
                button.button_style = "primary"
        self.answer.value = escape(TEXT["committed"].format(choice=choice))

    def check(self, answer: str, measured: str) -> str:
        """A sentence that holds the prediction against what was ``measured``."""
        if self.value is None:
            return TEXT["nothing"].format(measured=measured)
        key = "right" if self.value == answer else "wrong"
        return TEXT[key].format(choice=self.value, answer=answer, measured=measured)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        bundle = dict(self.box._repr_mimebundle_())
        bundle["text/plain"] = f"{TEXT['prompt']}: {self.question}\n" + "\n".join(f"  ( ) {o}" for o in self.options)
        return bundle


def predict(question: str, *options: str) -> Prediction:
    """Show ``question`` with its ``options`` as buttons; at least two."""
    if len(options) < 2:
        raise ValueError("a prediction needs at least two options to choose from")
    return Prediction(question, options)
