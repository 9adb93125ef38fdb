"""Do the tests that the documents name notice when the product breaks what they promise?

    make soak-claims CLAIMS_ARGS="[--only TEXT] [--file FILE] [--again claims.jsonl] [--within core/queue] [--tries N]
                                  [--seed S] [--part 1/2] [--out claims.jsonl]"

For each such test it changes one place at a time among the lines that this test and its neighbours run, and runs the
test again, in a process of its own.  A test that notices by an assertion, or over what it unpacks in a line of its own,
is one that can fail.  Those that let all changes pass, or only fell over an exception of the product, are listed at
the end with the sentence that they are meant to prove; then it ends with 1.  A change may be none in effect, so a name
in the list is a question, not a verdict: what answers it, where the test is right as it is, is a row of `known.py`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

import scenario
import waiting
from claims.copies import Nothing, in_copy
from claims.known import KNOWN, node_of, wrong_rows
from claims.lines import Lines
from claims.mutants import SOURCE, Functions, Site, sites
from claims.rows import TESTS, Claim, claims, tests_of
from claims.servers import fork_from_here

TRIES = 150
"""Changes that a test may let pass before it is listed."""
ASKED_S = 300.0
"""It is asked no longer, however long each run of it takes."""
SECONDS = 120.0
"""For one run of one test as it is."""
PATIENCE_S = 6.0
"""With a change it may wait for what never comes: this long, beside what its run with tracing took."""
HURRY_S = 3
"""Then what tests wait with gives up first, and says by an assertion what has not come."""
INSIDE = Path(__file__).parent / "inside"
OUT_OF_SIGHT = (TESTS / "spark", TESTS / "crash")
"""Judged by walks and kills of minutes each: too slow for this."""
_AROUND = ("penstock/testing", "penstock/config", "penstock/cli", "penstock/client")
"""Run by all tests of a door, and seldom what a sentence is about."""


@dataclass
class Ran:
    """What a test as it is has run."""

    lines: set[tuple[str, int]]
    modules: list[str]
    """That it loaded, in order."""
    processes: bool
    """Whether it started any of the product."""


@dataclass
class Verdict:
    """What became of one test."""

    claim: Claim
    passed_by: list[str] = field(default_factory=list)
    """Changes that it did not notice."""
    fell: list[str] = field(default_factory=list)
    """Changes at which something raised, asserted by nobody."""
    noticed: str = ""
    """The change that an assertion noticed."""
    trouble: str = ""
    """Why it could not be asked."""

    @property
    def stands(self) -> bool:
        """It can fail."""
        return bool(self.noticed)


def words_of(text: str) -> frozenset[str]:
    """Beginnings of its words, of which each form is one."""
    return frozenset(word[:5] for word in re.findall(r"[a-z]{4,}", text.lower()))


class Chooser:
    """Chooses changes for tests, by turns in three orders: lines that the tests beside it run too and those of other
    files seldom do; lines that few tests run at all; lines that have rare words in common with the sentence.

    What a sentence is about is mostly run by its neighbours in the test file; what is refused, by the test alone.
    """

    def __init__(self, seen: dict[Claim, set[tuple[str, int]]], seed: int, within: str = "") -> None:
        """within: only lines of files below src whose path has this in it."""
        self._seen = {claim: {line for line in lines if within in line[0]} for claim, lines in seen.items()}
        self._all = Counter(line for lines in seen.values() for line in lines)
        self._files = Counter(claim.file for claim in seen)
        self._beside: dict[Path, Counter[tuple[str, int]]] = defaultdict(Counter)
        for claim, lines in seen.items():
            self._beside[claim.file].update(lines)
        self._sites: dict[str, dict[int, list[Site]]] = {}
        self._seed = seed

    def choose(self, claim: Claim, most: int) -> list[Site]:
        """Changes, the likeliest first; one of each line before a second of any."""
        dice = random.Random(f"{self._seed} {claim.test}")
        found = [site for path, line in sorted(self._seen[claim]) for site in self._at(path).get(line, ())]
        dice.shuffle(found)
        turns: Counter[tuple[str, int]] = Counter()
        turn_of: dict[Site, int] = {}
        for site in found:
            turn_of[site] = turns[site.path, site.line]
            turns[site.path, site.line] += 1
        words = {site: words_of(f"{site.path} {site.what}") for site in found}
        common = Counter(word for some in words.values() for word in some)
        said = words_of(f"{claim.test} {claim.sentence} {claim.file.stem}")
        alone = {site: dice.uniform(0.5, 1.0) / self._all[site.path, site.line] for site in found}
        orders = (
            {site: self._likely_beside(claim.file, site) * dice.uniform(0.5, 1.0) for site in found},
            alone,
            {site: sum(1 / common[word] for word in words[site] & said) + alone[site] / 1000 for site in found},
        )
        rows = (sorted(found, key=lambda site: (turn_of[site], -order[site])) for order in orders)
        return list(dict.fromkeys(site for row in zip(*rows, strict=True) for site in row))[:most]

    def _likely_beside(self, file: Path, site: Site) -> float:
        line = (site.path, site.line)
        beside, all_files = self._beside[file][line], self._all[line]
        elsewhere = (all_files - beside + 1) / (len(self._seen) - self._files[file] + 20)
        here = beside / (self._files[file] + 2)
        return here / elsewhere * (0.25 if site.path.startswith(_AROUND) else 1.0)

    def _at(self, path: str) -> dict[int, list[Site]]:
        known = self._sites.get(path)
        if known is None:
            known = self._sites[path] = defaultdict(list)
            for site in sites(path):
                known[site.line].append(site)
        return known


class Examiner:
    """A plugin of pytest that examines tests instead of running them: each run is one in a copy of this process."""

    def __init__(
        self, wanted: Sequence[Claim], tries: int, seed: int, within: str, told: Callable[[Verdict], None]
    ) -> None:
        """within: as a Chooser has it.  told: called with each verdict as it comes."""
        self.verdicts: list[Verdict] = []
        self._claims = {(claim.file, claim.test): claim for claim in wanted}
        self._tries = tries
        self._seed = seed
        self._within = within
        self._told = told
        self._items: dict[Claim, list[pytest.Item]] = defaultdict(list)
        self._functions: Functions | None = None
        self._failed_by: BaseException | None = None
        self._took: dict[Claim, float] = {}
        self._forking: set[Claim] = set()
        """Tests whose servers may be forked, which takes a tenth of the time that a new process takes."""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Examine what was collected."""
        for item in session.items:
            claim = self._claims.get((item.path, getattr(item, "originalname", item.name)))
            if claim is not None:
                self._items[claim].append(item)
        for claim in self._claims.values():
            if claim not in self._items:
                self._say(Verdict(claim, trouble="pytest does not collect it"))
        seen: dict[Claim, set[tuple[str, int]]] = {}
        starting: list[Claim] = []
        get_ready()
        unseen: list[Claim] = []
        for claim in self._items:
            ran = self.lines_of(claim)
            if not isinstance(ran, Nothing):
                seen[claim] = ran.lines
                if ran.processes:
                    starting.append(claim)
                load(ran.modules)
            elif in_copy(lambda claim=claim: self._run(claim), SECONDS) == "":
                unseen.append(claim)  # one that measures; it bears no tracing
            else:
                self._say(Verdict(claim, trouble=ran.why))
        for claim in unseen:
            seen[claim] = {line for beside, lines in seen.items() if beside.file == claim.file for line in lines}
        load(_module(path) for path in sorted({path for lines in seen.values() for path, _ in lines}))
        self._functions = Functions()
        gc.collect()
        gc.freeze()  # what copies share stays shared: no collection of theirs writes to it
        chooser = Chooser(seen, self._seed, self._within)
        self._forking = {claim for claim in starting if self.stands_forked(claim)}
        for claim in seen:
            self._say(self.judge(claim, chooser.choose(claim, self._tries)))
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_exception_interact(self, call: pytest.CallInfo[None]) -> None:
        """Keep what a test failed by."""
        self._failed_by = call.excinfo.value if call.excinfo is not None else None

    def _say(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self._told(verdict)

    def lines_of(self, claim: Claim) -> Ran | Nothing:
        """Which lines a test runs, its servers among them."""

        def work() -> Ran | Nothing:
            before = set(sys.modules)
            folder = Path(tempfile.mkdtemp(prefix="claims-"))
            os.environ["PENSTOCK_CLAIMS_LINES"] = str(folder)
            seen = Lines()
            seen.begin()
            try:
                failure = self._run(claim)
            finally:
                seen.end()
                told = [line for file in folder.glob("*.lines") for line in file.read_text(encoding="utf-8").split()]
                shutil.rmtree(folder)
            if failure:
                return Nothing(f"it fails as it is: {failure}")
            places = (line.rpartition(":") for line in told)
            lines = seen.seen | {(path, int(number)) for path, _, number in places}
            return Ran(lines, [name for name in sys.modules if name not in before], bool(told))

        began = time.monotonic()
        lines = in_copy(work, SECONDS)
        self._took[claim] = time.monotonic() - began
        return lines

    def stands_forked(self, claim: Claim) -> bool:
        """Whether a test passes as it is when its servers are forked from its process."""

        def work() -> str:
            fork_from_here()
            return self._run(claim)

        return in_copy(work, PATIENCE_S + self._took[claim]) == ""

    def ask(self, claim: Claim, site: Site) -> str:
        """Run a test over a change: "" not noticed, "assertion", or what it fell over."""
        functions = self._functions
        assert functions is not None

        def work() -> str:
            os.environ["PENSTOCK_CLAIMS_MUTANT"] = str(site)
            hurry()
            functions.put_in(site)
            if claim in self._forking:
                fork_from_here()
            return self._run(claim)

        answer = in_copy(work, PATIENCE_S + self._took[claim])
        return answer.why if isinstance(answer, Nothing) else answer

    def _run(self, claim: Claim) -> str:
        """Run all cases of a test until one fails: "" none, "assertion", or the exception."""
        for item in self._items[claim]:
            for report in runtestprotocol(item, log=False, nextitem=None):
                if report.failed:
                    error = self._failed_by
                    if error is not None and noticed(error, item.path):
                        return "assertion"
                    return f"{type(error).__name__}: {error}"[:200]
        return ""

    def judge(self, claim: Claim, chosen: Iterable[Site]) -> Verdict:
        """Ask until the test notices a change."""
        verdict = Verdict(claim)
        until = time.monotonic() + ASKED_S
        for site in chosen:
            if time.monotonic() > until:
                break
            answer = self.ask(claim, site)
            told = f"{site.path}:{site.line} {site.what}"
            if answer == "assertion" and self.ask(claim, site) == answer:  # twice: it was no pause of the machine
                verdict.noticed = told
                break
            if answer == "":
                verdict.passed_by.append(told)
            else:
                verdict.fell.append(f"{told}: {answer}")
        if not (verdict.stands or verdict.passed_by or verdict.fell):
            verdict.trouble = "it runs no line of the product that could be changed"
        return verdict


def noticed(error: BaseException, file: Path) -> bool:
    """Whether a test failed because it looked, and not because nothing worked any more.

    `[message] = ...` in a line of its own asserts that there is one.  What the product asserts of itself is no look of
    a test's unless it asked for it (`check`), and that a server did not start is none either.
    """
    if isinstance(error, BaseExceptionGroup):
        return any(noticed(one, file) for one in error.exceptions)
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    last = Path(codes[-1].co_filename) if codes else file
    if isinstance(error, pytest.fail.Exception):
        return True
    if not isinstance(error, AssertionError):
        return isinstance(error, LookupError | ValueError | StopIteration) and last == file
    if last.is_relative_to(SOURCE):
        return any(code.co_name == "check" for code in codes)
    return (last, codes[-1].co_name if codes else "") != (TESTS / "live_server.py", "start")


def _module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def load(names: Iterable[str]) -> None:
    """Import modules that tests have loaded, once for all copies of this process."""
    for name in names:
        if name not in sys.modules:
            with suppress(Exception):  # it may be one that only a test can make
                importlib.import_module(name)


def hurry() -> None:
    """Have what tests wait with (`waiting`, `scenario`) give up sooner than a test is given up."""
    waiting.PUMPED_S = waiting.HAPPENS_S = HURRY_S
    scenario.PATIENCE_S = HURRY_S


def get_ready() -> None:
    """Make what each copy would make for itself: the models of the settings."""
    from penstock.config.settings import Settings

    Settings()


def examine(
    wanted: Sequence[Claim],
    tries: int = TRIES,
    seed: int = 1,
    within: str = "",
    told: Callable[[Verdict], None] = lambda verdict: None,
) -> list[Verdict]:
    """Judge tests, in copies of this process, which must have no threads."""
    os.environ["PENSTOCK_UNSHRUNK"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(SOURCE), str(TESTS), str(INSIDE)]
    )  # of the servers that tests start
    examiner = Examiner(wanted, tries, seed, within, told)
    quiet = [
        "-q",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-p",
        "no:warnings",
        "-m",
        "",
        "--no-header",
        "--capture=no",
    ]
    pytest.main([*quiet, *(claim.node for claim in wanted)], plugins=[examiner])
    return examiner.verdicts


def _line(verdict: Verdict) -> dict[str, object]:
    claim = verdict.claim
    return {
        "test": claim.test, "file": str(claim.file), "document": claim.document,
        "sentence": claim.sentence, "noticed": verdict.noticed, "passed_by": verdict.passed_by, "fell": verdict.fell,
        "trouble": verdict.trouble,
    }  # fmt: skip


def _asked(line: Mapping[str, object]) -> tuple[str, str]:
    return str(line["file"]).rpartition("/tests/")[2], str(line["test"])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="claims", description="Which tests that documents name can fail?")
    parser.add_argument("--only", nargs="+", default=[""], help="tests whose file or name has one of these in it")
    parser.add_argument("--file", type=Path, default=None, help="all tests of this file, named by a document or not")
    parser.add_argument("--again", type=Path, default=None, help="tests that noticed nothing, by what --out has left")
    parser.add_argument("--within", default="", help="only changes in files below src whose path has this in it")
    parser.add_argument("--part", default="1/1", help="2/3: the second third of them")
    parser.add_argument("--tries", type=int, default=TRIES)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="a line of JSON for each test")
    given = parser.parse_args(arguments)
    part, _, parts = given.part.partition("/")
    known = claims() if given.file is None else tests_of(given.file.resolve())
    wanted = [claim for claim in known if any(text in claim.node for text in given.only)]
    if given.again is not None:
        doubted = set(map(_asked, filter(lambda one: not one["noticed"], map(json.loads, given.again.open()))))
        wanted = [claim for claim in wanted if _asked(_line(Verdict(claim))) in doubted]
    wanted = [claim for claim in wanted if not any(map(claim.file.is_relative_to, OUT_OF_SIGHT))]
    wanted = wanted[(int(part) - 1) :: int(parts)]
    done = 0

    def told(verdict: Verdict) -> None:
        nonlocal done
        done += 1
        if given.out is not None:
            with given.out.open("a", encoding="utf-8") as out:
                out.write(json.dumps(_line(verdict)) + "\n")
        asked = len(verdict.passed_by) + len(verdict.fell) + verdict.stands
        word = (
            "can fail" if verdict.stands else verdict.trouble.splitlines()[-1] if verdict.trouble else "NOTICED NOTHING"
        )
        print(f"{done}/{len(wanted)} {verdict.claim.test}: {word} ({asked} asked)", flush=True)

    verdicts = examine(wanted, given.tries, given.seed, given.within, told)
    return report(verdicts)


def report(verdicts: Sequence[Verdict]) -> int:
    """Print who could not fail and has no reason for it, and what is wrong with the reasons; 0 when that is nobody."""
    lively = [verdict.claim for verdict in verdicts if verdict.stands]
    reasons = {row.node: row.reason for row in KNOWN}
    silent = [verdict for verdict in verdicts if not verdict.stands]
    doubtful = [verdict for verdict in silent if node_of(verdict.claim) not in reasons]
    print(f"\n{len(lively)} of {len(verdicts)} tests that documents name can fail.", end=" ")
    print(f"Of the others {len(silent) - len(doubtful)} have a reason and {len(doubtful)} have none.")
    for verdict in silent:
        if verdict not in doubtful:
            print(f"  {node_of(verdict.claim)}: {reasons[node_of(verdict.claim)]}")
    for verdict in doubtful:
        claim = verdict.claim
        print(f"\n{claim.node}\n  {claim.document}: {claim.sentence}")
        print(f"  {verdict.trouble or f'let {len(verdict.passed_by)} changes pass, fell over {len(verdict.fell)}'}")
        for change in [*verdict.passed_by[:8], *verdict.fell[:3]]:
            print(f"    {change}")
    wrong = wrong_rows(KNOWN, claims(), lively)
    for line in wrong:
        print(f"known.py: {line}")
    return 1 if doubtful or wrong else 0


if __name__ == "__main__":
    sys.exit(main())
