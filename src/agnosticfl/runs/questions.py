# SPDX-License-Identifier: Apache-2.0
"""What a run asks the clients who evaluate it.

A question is about one model on one part of what clients keep from training: "heldout", looked at
while training goes on, or "test", for the end. No question is asked twice, so each has a number;
under a secure sum clients answer them in rising order, each once.
"""

from typing import NamedTuple

from agnosticfl.runs.config import Config

# Which model is asked about after the last round, on which part, in this order.
AT_THE_END = (
    ("last", "heldout"),
    ("last", "test"),
    ("mean", "heldout"),
    ("mean", "test"),
    ("best", "test"),
)


class Question(NamedTuple):
    """What clients are asked."""

    number: int  # from 1 on; the same model and part have the same number
    split: str
    look: bool  # while training goes on, when some of the clients are enough


def question(config: Config, which: str, t: int, split: str) -> Question:
    """About w_t: a look, or one of the models at the end ("last", "mean" or "best")."""
    every, looks = config.evaluation_every, num_looks(config)
    if split == "heldout" and which != "mean" and every > 0 and t % every == 0:
        return Question(t // every, split, which == "look")
    if which == "best" and t == config.rounds:
        which = "last"
    return Question(looks + 1 + AT_THE_END.index((which, split)), split, look=False)


def num_looks(config: Config) -> int:
    """How often a run looks at held-out examples."""
    return config.rounds // config.evaluation_every if config.evaluation_every else 0


def num_questions(config: Config) -> int:
    """The highest number that a question of this run can have."""
    return num_looks(config) + len(AT_THE_END)


def split_asked(config: Config, number: int) -> str:
    """Which part a question is about: a client need not be told."""
    looks = num_looks(config)
    return "heldout" if number <= looks else AT_THE_END[number - looks - 1][1]
