"""Answers to what the core has asked for (`core.asks`): each goes to whoever asked, if that is still there.

Dead letters take two: their bodies are fetched, then content filters of where they go may have to judge them.
"""

from __future__ import annotations

from penstock.core.asks import Answer, Fetched, Judge, Judged, Keyed, Purpose, Rated, Recovered, Scanned, Token
from penstock.core.commands.acknowledging import AcknowledgeCommands
from penstock.core.publishing.dead_letters import Buried
from penstock.core.queue.limits.refusing import Reckoning
from penstock.core.queue.settling.letters import portions, split
from penstock.core.queue.view import Queue
from penstock.records.chunks import Now


class AnswerCommands(AcknowledgeCommands):
    """The one way in for answers."""

    def answered(self, now: Now, answer: Answer) -> None:
        """Go on with what an ask was for; of an answer for a part the rest is asked for again."""
        now = self._at(now)
        match answer:
            case Recovered():
                self._pass_answered(now, answer)
            case Scanned() if answer.token.purpose is Purpose.SWEEP:
                self._swept(now, answer)
            case _:
                queue = self._by_id(answer.token.queue)
                if queue is not None:
                    self._queue_answered(now, queue, answer)
                    self._touch(queue)
                elif isinstance(answer, Judged):
                    self._buried.pop(answer.token, None)

    def _queue_answered(self, now: Now, queue: Queue, answer: Fetched | Scanned | Judged | Rated | Keyed) -> None:
        token, out = answer.token, self._out
        match answer:
            case Scanned():
                queue.scanned(now, token, answer.found, answer.upto, out)
            case Rated():
                queue.rated(now, token, answer.chunk, answer.ranks, out)
            case Keyed():
                queue.keyed(now, token, answer.chunk, answer.keys, out)
            case Fetched():
                letter = queue.letter(token, answer.upto)
                if letter is not None:
                    parts = portions(letter, answer.rows)
                    prepared = [(part, self._letters.prepare(now, queue, answer.rows, part)) for part in parts]
                    self._bury(now, queue, token, prepared)
            case Judged():
                judged = self._buried.pop(token, None)
                if judged is not None and queue.letter(token) is not None:
                    self._bury(now, queue, token, judged)

    def _bury(self, now: Now, queue: Queue, token: Token, parts: list[Buried]) -> None:
        """Write dead letters, each part a group, or first have them judged where that would hold the loop."""
        asked = [one for _, prepared in parts for one in self._letters.unjudged(prepared)]
        if asked:
            self._buried[token] = parts
            self._out.effect(Judge(token, asked))
            return
        for i, (part, prepared) in enumerate(parts):
            full = self._letters.without_room(now, prepared, Reckoning())
            fits, rest = split(part, full) if full else (part, [])
            if fits is not None:
                if full:
                    there = {lsn for run in fits.runs for lsn in run.chunk}
                    prepared = [one.of(there) for one in prepared]
                self._out.begin()
                self._letters.write(now, queue, prepared, fits)
                self._out.end()
            if full:
                rest += [run for later, _ in parts[i + 1 :] for run in later.runs]
                self._letters.without_place += len(full)
                queue.refused_letter(now, token, rest, len(full))
                return
        queue.buried(token, self._out)
