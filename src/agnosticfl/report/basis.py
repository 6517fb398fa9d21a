# SPDX-License-Identifier: Apache-2.0
"""What stands behind the numbers of a table: examples, classes, clients, and what is missing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from agnosticfl.report.comparison import Comparison, is_hidden, is_told
from agnosticfl.report.grid import Entry

BY_NAME = 4  # so many classes are counted one by one; of more, the rarest and the most frequent
LONGEST = 24  # letters of the names of classes in a row's head


class Behind(NamedTuple):
    """The domains whose examples a column's numbers are of."""

    domains: Sequence[str] = ()
    together: bool = False  # all of them in each number; else each number is of one of them


def foot(comparison: Comparison, columns: Sequence[Behind]) -> list[list[Entry]]:
    """Rows of counts, to stand below a table with these columns."""
    summary, examples = comparison.runs[0].summary, comparison.runs[0].test_examples
    if not examples:
        return []
    rows = [[Entry("test examples"), *(_examples(examples, column) for column in columns)]]
    if "classes" in summary:
        names, numbers = summary["classes"]["names"], summary["classes"]["test"]
        rows.append([Entry(_class_names(names)), *(_classes(numbers, c) for c in columns)])
    if "clients_with" in summary:
        clients, everybody = summary["clients_with"]["test"], comparison.bootstrap.clients
        rows.append([Entry("test clients"), *(_clients(clients, everybody, c) for c in columns)])
    return rows


def notes(comparison: Comparison, metric: str) -> list[str]:
    """What a reader of the table must not overlook."""
    coming = [run for run in comparison.runs if run.unfinished]
    if coming:
        done, rounds = coming[0].records[-1]["round"], coming[0].config.rounds
        return [f"Not finished: {done} of {rounds} rounds are done, and nothing is tested yet."]
    known, examples = comparison.known(metric), comparison.runs[0].test_examples
    unknown = [domain for domain in comparison.domains if domain not in known]
    if not known and not any(is_told(run, metric) for run in comparison.runs):
        return [f"Private runs measure the loss and the task's metric alone, and no {metric}."]
    hidden = [d for d in unknown if any(is_hidden(run, d, metric) for run in comparison.runs)]
    empty = [d for d in unknown if d not in hidden and not examples.get(d)]
    undefined = [domain for domain in unknown if domain not in (*hidden, *empty)]
    over = f"worst and difference are over the other {len(known)} domains."
    among = f"; {over}" if known else "."
    how = comparison.bootstrap
    lines = [
        (hidden, f"Too few test clients for the noise: {_listed(hidden)}{among}"),
        (empty, f"No test examples: {_listed(empty)}; {over}"),
        (
            undefined,
            f"{metric} is not defined on the test examples of {_listed(undefined)}"
            f"{_one_class(comparison, undefined)}; {over}",
        ),
        (
            how.over_examples,
            "Fewer than 10 test clients, so that the interval is over examples, not clients:"
            f" {_listed(how.over_examples)}.",
        ),
        (
            how.few_clients,
            "Fewer than 10 test clients, and an interval over so few is rough:"
            f" {_listed(how.few_clients)}.",
        ),
        (metric in how.missing, f"No interval: {how.missing.get(metric)}."),
        *_judged_by_clients(comparison, metric),
    ]
    return [line for wanted, line in lines if wanted]


def _judged_by_clients(comparison: Comparison, metric: str) -> list[tuple[bool, str]]:
    """That no server has seen the examples, and how exact a metric of their sums is."""
    errors = [
        error.get(metric, 0.0)
        for run in comparison.runs
        for error in run.summary.get("within", {}).get("test", {}).values()
    ]
    asked = any(run.config.evaluation_by == "clients" for run in comparison.runs)
    off = max(errors, default=0.0)
    return [
        (asked, "The clients measured it, on examples that they keep from training."),
        (off > 0, f"Computed from counts of scores in bins: {metric} is within ±{off:.2g}."),
    ]


def of_one_domain(comparison: Comparison) -> list[str]:
    """Whose training says nothing of most domains."""
    alone = ", ".join(row.title for row in comparison.rows if row.target is not None)
    return [f"Trained on one domain, and measured on no other meanwhile: {alone}."] if alone else []


def _listed(domains: Iterable[str]) -> str:
    return ", ".join(map(repr, domains))


def _one_class(comparison: Comparison, domains: list[str]) -> str:
    """Why a metric is not defined, if it is because of that."""
    by_class = comparison.runs[0].summary.get("classes", {}).get("test", {})
    alike = [domain in by_class and sum(n > 0 for n in by_class[domain]) == 1 for domain in domains]
    return " (all are of one class)" if all(alike) else ""


def _examples(numbers: Mapping[str, int], column: Behind) -> Entry:
    own = [numbers[domain] for domain in column.domains]
    return _range([sum(own)] if column.together else own)


def _clients(numbers: Mapping[str, int], everybody: int | None, column: Behind) -> Entry:
    """A client may have examples of several domains, so the numbers do not add up."""
    if column.together:
        return _range([] if everybody is None else [everybody])
    return _range([numbers[domain] for domain in column.domains])


def _classes(numbers: Mapping[str, Sequence[int]], column: Behind) -> Entry:
    own = [numbers[domain] for domain in column.domains]
    if column.together:
        own = [[sum(each) for each in zip(*own, strict=True)]]
    if own and len(own[0]) > BY_NAME:
        return _range([n for domain in own for n in domain])
    return Entry(" / ".join(_range(each).text for each in zip(*own, strict=True)))


def _class_names(names: Sequence[str]) -> str:
    if len(names) > BY_NAME:
        return f"of each of {len(names)} classes"
    text = f"of class {' / '.join(names)}"
    return text if len(text) <= LONGEST else "of each class"


def _range(numbers: Sequence[int]) -> Entry:
    """The number, or the smallest and the largest of several."""
    ends = sorted({min(numbers), max(numbers)}) if numbers else []
    return Entry("–".join(f"{n:,}" for n in ends))
