"""Client of a served vision-language model: requests are submitted, and answers collected when they are there."""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from robotrl.errors import ConfigError, RobotrlError
from robotrl.rewards.endpoint.address import parse_address, read_key
from robotrl.rewards.endpoint.budget import CallBudget
from robotrl.rewards.endpoint.call import RETRIED, CallFault, CallResult, HttpCall
from robotrl.rewards.endpoint.cfg import EndpointCfg
from robotrl.rewards.endpoint.ledger import ChatLedger, ChatRequest
from robotrl.rewards.endpoint.protocol import check_shown, identity_of, read_completion, request_body, request_key
from robotrl.rewards.endpoint.replies import ReplySchema, parse_reply
from robotrl.rewards.scoring.answer_files import AnswerFiles
from robotrl.rewards.scoring.ledger import Answers, check_new_tickets
from robotrl.run.locking import stop_requested

POLL_S = 0.1
"""Longest time between two looks at the clock, s."""
END_S = 2.0
"""Longest wait for each thread at the end, s; one that hangs in a name server is left to die with the process."""


class ChatEndpoint:
    """Asks a vision-language model over HTTP, with threads that wait for it.

    `submit` and `collect` return at once, whatever the server does; only `wait` takes longer. Each accepted ticket is
    answered exactly once, unless it is forgotten: faults, late and malformed answers are invalid ones. One thread may
    use a client.

    Args:
        cfg: settings.
        reply: form of all answers.
        field: name of the settings, for errors.
        budget: of several clients together; None: of this one alone.

    Raises:
        ConfigError: a setting is out of range, or the key's variable is not set.
        DataError: the directory of answers cannot be used.
    """

    def __init__(
        self, cfg: EndpointCfg, reply: ReplySchema, field: str = "endpoint", budget: CallBudget | None = None
    ) -> None:
        cfg.check(field)
        self._cfg, self._reply, self._field = cfg, reply, field
        self._address = parse_address(cfg.base_url, f"{field}.base_url")
        if cfg.key_env is not None:
            read_key(cfg.key_env, field)
            if not self._address.secure and not self._address.local:
                warnings.warn(f"{field}.base_url is http: the key crosses the network in the open", stacklevel=2)
        self._files = self._open_files(cfg.answers)
        self._ledger = ChatLedger(cfg, self._files)
        self._budget = CallBudget(cfg) if budget is None else budget
        self._changed = threading.Condition()
        self._calls = set[HttpCall]()
        self._noticed = set[str]()
        self._open = True
        targets = [self._work] * cfg.concurrency + [self._watch_clock]
        self._threads = [threading.Thread(target=run, name="robotrl-endpoint", daemon=True) for run in targets]
        for thread in self._threads:
            thread.start()

    def _open_files(self, directory: str | None) -> AnswerFiles | None:
        if directory is None:
            return None
        identity = identity_of(self._cfg, self._reply)
        files = AnswerFiles(directory, identity, self._reply.num_outputs, None, f"{self._field}.answers")
        files.warn_of_damage()
        return files

    @property
    def num_outputs(self) -> int:
        """K, the numbers of an answer."""
        return self._reply.num_outputs

    @property
    def pending(self) -> int:
        """Number of tickets without an answer yet."""
        with self._changed:
            return self._ledger.pending

    @property
    def room(self) -> int:
        """Number of requests that a `submit` of now would not drop."""
        with self._changed:
            return self._ledger.room

    def submit(
        self, tickets: NDArray[np.int64], prompts: Sequence[str], pictures: NDArray[np.uint8] | None = None
    ) -> NDArray[np.bool_]:
        """Submit requests.

        Args:
            tickets: (n,) unique numbers of the caller, by which it knows the answers.
            prompts: (n,) texts; the form of the answer is added.
            pictures: (n, h, w, 3) uint8, or clips (n, T, h, w, 3), the oldest frame first; copied. None: text alone.

        Returns:
            (n,): whether each was accepted. Others were dropped, as the queue was full, or refused, as the budget was
            spent; they get no answer.

        Raises:
            ConfigError: shapes or types are others, or the answer of a ticket is still to come or to be collected.
            RobotrlError: the client is closed.
        """
        if tickets.dtype != np.int64 or tickets.shape != (len(prompts),):
            shape = f"{tickets.dtype} of shape {tickets.shape}"
            raise ConfigError(f"tickets are {shape}: expected int64 of shape ({len(prompts)},), as many as prompts")
        shown = [None] * len(prompts) if pictures is None else [np.array(one, order="C") for one in pictures]
        if len(shown) != len(prompts):
            raise ConfigError(f"pictures are {len(shown)}: expected {len(prompts)}, as many as prompts")
        for one in shown:
            if one is not None:
                check_shown(one)
        keys = [request_key(prompt, one) for prompt, one in zip(prompts, shown, strict=True)]
        with self._changed:
            if not self._open:
                raise RobotrlError("the endpoint's client is closed: expected an open one")
            check_new_tickets(tickets.tolist(), self._ledger.known)
            rows = zip(tickets.tolist(), keys, prompts, shown, strict=True)
            accepted = np.array([self._offer(*row) for row in rows], np.bool_)
            self._changed.notify_all()
        self._warn()
        return accepted

    def _offer(self, ticket: int, key: bytes, prompt: str, shown: NDArray[np.uint8] | None) -> bool:
        ledger, now_s = self._ledger, time.monotonic()
        ledger.counters.submitted += 1
        if ledger.hit(ticket, key, now_s):
            ledger.counters.hits += 1
            return True
        if self._budget.spent:
            self._refuse(1)
            return False
        if not ledger.room:
            ledger.counters.dropped += 1
            return False
        ledger.add(ticket, key, prompt, shown, now_s)
        return True

    def _refuse(self, count: int) -> None:
        self._ledger.counters.refused += count
        cfg = self._cfg
        if self._budget.unknown:
            self._notice(
                "a call does not say how many tokens it cost, so max_cost cannot be kept: nothing more is asked"
            )
        else:
            limits = f"max_requests {cfg.max_requests}, max_cost {cfg.max_cost}"
            self._notice(f"the budget is spent ({limits}): requests with an unknown answer are refused")

    def collect(self) -> Answers:
        """Return all answers that have arrived since the last call."""
        with self._changed:
            answers = self._ledger.take(self.num_outputs)
        self._warn()
        return answers

    def wait(self, limit_s: float) -> Answers:
        """Wait until nothing is pending, for `limit_s` seconds at most, and return what `collect` does.

        It returns earlier if the run was asked to stop.
        """
        end_s = time.monotonic() + limit_s
        with self._changed:
            while self._open and self._ledger.pending and not stop_requested():
                left_s = end_s - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(min(left_s, POLL_S))
        return self.collect()

    def forget(self, tickets: NDArray[np.int64]) -> None:
        """Drop the requests and answers of tickets (n,); unknown ones are ignored."""
        with self._changed:
            self._ledger.forget(tickets.tolist())

    def forget_all(self) -> None:
        """Drop all requests and answers: their tickets may be used again for something else."""
        with self._changed:
            self._ledger.forget(self._ledger.tickets())

    def metrics(self) -> dict[str, float]:
        """Scalars to log: length of the queue, calls (`requests_paid`), cost, and those of `EndpointCounters`."""
        with self._changed:
            now = {
                "queue_length": float(self._ledger.waiting),
                "pending": float(self._ledger.pending),
                "requests_paid": float(self._budget.calls),
                "cost": self._budget.cost,
            }
            return now | self._ledger.counters.scalars()

    def counts(self) -> dict[str, int]:
        """Number of calls (`calls`), and the counts of `EndpointCounters`."""
        with self._changed:
            return {"calls": self._budget.calls} | self._ledger.counters.counts()

    def state(self) -> dict[str, float]:
        """Calls and money paid so far, and what is known of prices, so that a resumed run keeps to its budget."""
        with self._changed:
            return self._budget.state()

    def load(self, state: Mapping[str, float]) -> None:
        """Restore the result of `state`."""
        with self._changed:
            self._budget.load(state)

    def close(self) -> None:
        """End the calls; requests without an answer are dropped. May be called repeatedly."""
        with self._changed:
            if not self._open:
                return
            self._open = False
            self._ledger.drop_all()
            calls = list(self._calls)
            self._changed.notify_all()
        for call in calls:
            call.abort()
        end_s = time.monotonic() + END_S
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        if self._files is not None:
            try:
                # a thread that is left would find it closed and open another file
                with self._changed:
                    self._files.close()
            except OSError as error:
                warnings.warn(f"stored answers may be lost in a power cut: {error.strerror}", stacklevel=2)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # threads

    def _watch_clock(self) -> None:
        """End what takes too long."""
        while True:
            with self._changed:
                if not self._open:
                    return
                now_s = time.monotonic()
                if self._ledger.expire(now_s):
                    self._changed.notify_all()
                late = [call for call in self._calls if now_s >= call.deadline_s]
            for call in late:
                call.abort()
            time.sleep(POLL_S / 2)

    def _work(self) -> None:
        while (request := self._take()) is not None:
            self._ask(request)

    def _take(self) -> ChatRequest | None:
        """Wait for a request; None at the end."""
        with self._changed:
            while self._open:
                request = self._ledger.next()
                if request is not None:
                    return request
                self._changed.wait()
        return None

    def _ask(self, request: ChatRequest) -> None:
        """Get the answer of a request, with retries."""
        body = request_body(self._cfg, self._reply, request.prompt, request.shown)
        for attempt in range(self._cfg.retries + 1):
            call = self._begin(request)
            if call is None:
                return
            result = self._post(call, body)
            outputs = self._end(call, request, result)
            if result.fault is None or result.fault not in RETRIED or attempt == self._cfg.retries:
                self._conclude(request, result, outputs)
                return
            pause_s = self._cfg.backoff_s * 2**attempt if result.pause_s is None else result.pause_s
            self._pause(request, pause_s)

    def _begin(self, request: ChatRequest) -> HttpCall | None:
        """Count and register a call; None if the request is closed, or the budget spent."""
        with self._changed:
            if not self._open or not self._ledger.is_open(request):
                return None
            if not self._budget.begin():
                self._refuse(self._ledger.fail(request))
                self._changed.notify_all()
                return None
            limit_s = time.monotonic() + self._cfg.call_timeout_s
            call = HttpCall(self._address, min(limit_s, request.deadline_s))
            self._calls.add(call)
            return call

    def _post(self, call: HttpCall, body: bytes) -> CallResult:
        try:
            key = None if self._cfg.key_env is None else read_key(self._cfg.key_env, self._field)
        except ConfigError:
            return CallResult(None, CallFault.KEY)
        return call.post(body, key, self._cfg.max_answer_bytes)

    def _end(self, call: HttpCall, request: ChatRequest, result: CallResult) -> NDArray[np.float32] | None:
        """Count a call that ended; returns its numbers (K,), None without any."""
        completion = None if result.body is None else read_completion(result.body)
        text = None if completion is None else completion.text
        outputs = None if text is None else parse_reply(text, self._reply)
        with self._changed:
            self._calls.discard(call)
            if completion is None and result.billed:
                self._budget.end_unread()
            else:
                self._budget.end(completion is not None, None if completion is None else completion.usage)
            if result.fault is not None:
                self._ledger.counters.faults += 1
                status = "" if result.status is None else f" (status {result.status})"
                self._notice(f"{result.fault.value}{status}")
            if outputs is not None and self._open:
                self._ledger.answer(request, outputs)
                self._changed.notify_all()
        return outputs

    def _conclude(self, request: ChatRequest, result: CallResult, outputs: NDArray[np.float32] | None) -> None:
        """Close a request that has no valid answer."""
        if outputs is not None:
            return
        with self._changed:
            # a call that reached the request's time limit counts as that
            self._ledger.expire(time.monotonic())
            count = self._ledger.fail(request)
            if result.fault is None:
                self._ledger.counters.invalid += count
                self._notice(f"an answer is not of the form asked for: {self._reply.instruction()}")
            else:
                self._ledger.counters.failed += count
            self._changed.notify_all()

    def _pause(self, request: ChatRequest, pause_s: float) -> None:
        """Wait before a retry; less if the request is closed meanwhile."""
        end_s = time.monotonic() + pause_s
        with self._changed:
            self._ledger.counters.retries += 1
            while self._open and self._ledger.is_open(request) and (left_s := end_s - time.monotonic()) > 0:
                self._changed.wait(min(left_s, POLL_S))

    def _notice(self, text: str) -> None:
        """Queue a warning, once."""
        if text not in self._noticed:
            self._noticed.add(text)
            self._ledger.notices.append(f"{self._field} {self._cfg.model}: {text}; further ones are only counted")

    def _warn(self) -> None:
        with self._changed:
            notices, self._ledger.notices = self._ledger.notices, []
        for notice in notices:
            warnings.warn(notice, stacklevel=3)
