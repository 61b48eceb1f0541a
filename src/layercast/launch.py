"""Start a group's ranks as processes of this one, and end them together.

parent: launch() ---- spawn ----> rank 0, 1, ...: Group, then fn(group, *args)
  sleeps on every rank's pipe <-- result or failure (with the time, before the group is closed)
  and on every rank's end     <-- exit status or signal
                                  each rank sleeps on the parent's pidfd: no parent, no rank
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from layercast import rendezvous as rv
from layercast.config import Environment
from layercast.errors import ConfigError, GroupError, LaunchError, ResourceError
from layercast.group import Group

__all__ = ["RankFailed", "launch"]

log = logging.getLogger("layercast")

_PATIENCE_S = 5.0  # between SIGTERM and SIGKILL
_PATIENCE_INTERRUPTED_S = 0.5
_GOODBYE_S = 1.0
_ORIGINAL_GRACE_S = 0.2  # an earlier failure may still be in another pipe
_SECONDARY_GRACE_S = 1.0  # the failure behind "peer died" may still be on its way
_ORPHAN_GRACE_S = 1.0


class RankFailed(LaunchError):
    """A rank failed. `rank` and `pid` say which; the exception itself is chained if it could be sent.

    Attributes besides: `exitcode` (negative: the signal that killed it; None: it was still running) and
    `traceback` (its text, empty if there is none).
    """

    exitcode: int | None = None
    traceback: str = ""


@dataclass
class _Returned:
    pickled: bytes


@dataclass
class _Failed:
    """How a rank failed, as its process tells it, or as the parent sees it."""

    when: float  # CLOCK_MONOTONIC, seconds: comparable between the processes of one machine
    secondary: bool  # about another rank's end
    summary: str
    trace: str = ""
    pickled: bytes = b""
    exitcode: int | None = None
    status: int = 1  # with which its process is to exit


@dataclass
class _Child:
    rank: int
    process: SpawnProcess
    pipe: Connection
    pid: int
    ends: int  # readable when the process has ended, whatever its own children hold open
    outcome: _Returned | _Failed | None = None
    talking: bool = True  # its end of the pipe is open, and it has not reported
    ended: bool = False


def launch(
    fn: Callable[..., Any],
    tp: int,
    *,
    args: Sequence[Any] = (),
    name: str | None = None,
    timeout: float | None = None,
    runtime_dir: str | os.PathLike[str] | None = None,
) -> list[Any]:
    """Run `fn(group, *args)` on `tp` ranks, a new process each, and return their results by rank.

    `fn`, `args` and results are pickled, so `fn` is a function of a module. `timeout` limits the whole run,
    in seconds; None: no limit. RankFailed, a LaunchError, for the first rank that fails, after all others
    were ended; LaunchError at the time limit. Ctrl-C ends all ranks, and so does the end of this process.
    """
    if tp < 1:
        raise ConfigError(f"tp is {tp}, at least 1 rank is needed")
    name = rv.checked_name(name) if name is not None else f"launch-{os.getpid()}-{secrets.token_hex(4)}"
    _check_sendable(fn, args)
    children: list[_Child] = []
    patience = _PATIENCE_S
    try:
        _start(children, tp, (fn, tuple(args), name, tp, runtime_dir))
        _wait(children, None if timeout is None else time.monotonic() + timeout)
        _raise_first_failure(children)
        if running := [child.rank for child in children if not child.ended]:
            raise LaunchError(f"ranks {running} of {tp} still ran after {timeout} s", rank=running[0])
        return [_result(child) for child in children]
    except KeyboardInterrupt:
        patience = _PATIENCE_INTERRUPTED_S
        raise
    finally:
        _end(children, patience)
        _clear_away(name, runtime_dir)


def _check_sendable(fn: Callable[..., Any], args: Sequence[Any]) -> None:
    """Before anything starts, and by name: what multiprocessing says of a whole process names nothing."""
    for what, value in (("fn", fn), *((f"args[{i}]", value) for i, value in enumerate(args))):
        try:
            ForkingPickler.dumps(value)
        except RuntimeError as error:
            if "inheritance" in str(error) or "spawning" in str(error):
                continue  # locks and queues: they can be sent, but only to a process that is being started
            raise ConfigError(f"{what}: {value!r:.200} cannot be sent to another process: {error}") from error
        except Exception as error:
            raise ConfigError(f"{what}: {value!r:.200} cannot be sent to another process: {error}") from error


def _start(children: list[_Child], tp: int, plan: tuple[Any, ...]) -> None:
    context = multiprocessing.get_context("spawn")
    # A Ctrl-C meanwhile waits: here for a complete list of children, in them until somebody can report it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        for rank in range(tp):
            pipe, theirs = context.Pipe(duplex=False)
            process = context.Process(
                target=_run, args=(rank, os.getpid(), theirs, *plan), name=f"layercast rank {rank}"
            )
            try:
                process.start()
            except BaseException:
                pipe.close()
                raise
            finally:
                theirs.close()
            pid = process.pid or 0
            if (ends := rv.open_pidfd(pid)) < 0:
                process.kill()
                process.join()
                pipe.close()
                raise ResourceError(
                    f"rank {rank}: no descriptor for its process", hint="Linux 5.3 and a free descriptor are needed"
                )
            children.append(_Child(rank, process, pipe, pid, ends))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _wait(children: list[_Child], deadline: float | None) -> None:
    """Until every rank has ended, or until the first failure is certain."""
    failed_at: float | None = None
    while running := [child for child in children if not child.ended]:
        failures = [child.outcome for child in children if isinstance(child.outcome, _Failed)]
        if failures and failed_at is None:
            failed_at = time.monotonic()
        limit = deadline
        if failed_at is not None:
            secondary = all(failure.secondary for failure in failures)
            limit = failed_at + (_SECONDARY_GRACE_S if secondary else _ORIGINAL_GRACE_S)
        left = None if limit is None else limit - time.monotonic()
        if left is not None and left <= 0:
            return
        pipes = [child.pipe for child in running if child.talking]
        connection.wait([*pipes, *(child.ends for child in running)], left)
        for child in running:
            _look(child)


def _look(child: _Child) -> None:
    """Take what the rank has sent, then see whether it has ended."""
    ended = child.process.exitcode is not None  # asked first: what it sent before its end is in the pipe by now
    if child.talking and child.pipe.poll(0):
        child.talking = False
        with contextlib.suppress(EOFError, ConnectionError):  # it hung up without a word: its end says more
            child.outcome = child.pipe.recv()
    if not ended:
        return
    child.ended = True
    status = child.process.exitcode or 0
    if isinstance(child.outcome, _Failed):
        child.outcome.exitcode = status
    elif status or child.outcome is None:
        child.outcome = _Failed(time.monotonic(), False, _how_it_ended(status, child.outcome), exitcode=status)


def _how_it_ended(status: int, outcome: _Returned | None) -> str:
    when = "after it had returned" if outcome else "before it could report"
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name} {when}"
        except ValueError:
            return f"was killed by signal {-status} {when}"
    return f"exited with status {status} {when}"


def _raise_first_failure(children: Sequence[_Child]) -> None:
    failures = [(child, child.outcome) for child in children if isinstance(child.outcome, _Failed)]
    if not failures:
        return
    child, failed = min(failures, key=lambda pair: (pair[1].secondary, pair[1].when))
    hint = ""
    if failed.exitcode == -signal.SIGKILL:
        hint = "if nobody sent it: the kernel's log tells whether memory ran out"
    elif failed.exitcode == 1 and not failed.trace:
        hint = "its stderr says why; a script that calls launch needs `if __name__ == '__main__':`"
    message = f"rank {child.rank} (pid {child.pid}) {failed.summary}"
    error = RankFailed(
        f"{message}\n\n{failed.trace}" if failed.trace else message, hint=hint, rank=child.rank, pid=child.pid
    )
    error.exitcode, error.traceback = failed.exitcode, failed.trace
    raise error from _unpickled(failed.pickled)


def _unpickled(pickled: bytes) -> BaseException | None:
    if not pickled:
        return None
    try:
        cause = pickle.loads(pickled)
    except Exception:
        log.debug("the exception itself cannot be rebuilt here; its text is in the message", exc_info=True)
        return None
    return cause if isinstance(cause, BaseException) else None


def _result(child: _Child) -> Any:
    assert isinstance(child.outcome, _Returned)
    try:
        return pickle.loads(child.outcome.pickled)
    except Exception as error:
        text = f"the result of rank {child.rank} (pid {child.pid}) cannot be read here: {error}"
        raise LaunchError(text, rank=child.rank, pid=child.pid) from error


def _end(children: Sequence[_Child], patience: float) -> None:
    """No child is left when this returns, whatever interrupts it."""
    try:
        # Who has reported is closing: let it say goodbye, or the others tell of a death that is none.
        _wait_for([child for child in children if not child.talking], min(patience, _GOODBYE_S))
        for child in children:
            child.process.terminate()
        _wait_for(children, patience)
    finally:
        for child in children:
            child.process.kill()
            child.process.join()
            child.process.close()
            child.pipe.close()
            os.close(child.ends)


def _wait_for(children: Sequence[_Child], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while running := [child.ends for child in children if child.process.exitcode is None]:
        if not connection.wait(running, max(0.0, deadline - time.monotonic())):
            return


def _clear_away(name: str, runtime_dir: str | os.PathLike[str] | None) -> None:
    """A rank 0 that was ended has left its socket."""
    path = Path(runtime_dir) if runtime_dir is not None else Environment.read().runtime_dir
    if not path.exists():
        return
    directory = rv.Directory(path)
    try:
        if directory.holds(name):
            directory.discard(name)
    finally:
        directory.close()


# From here on: in the rank's process.


def _run(
    rank: int,
    parent: int,
    pipe: Connection,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    name: str,
    tp: int,
    runtime_dir: str | os.PathLike[str] | None,
) -> None:
    groups: list[Group] = []
    threading.Thread(target=_end_with_parent, args=(parent, rank, groups), daemon=True).start()
    outcome: _Returned | _Failed
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # one that came meanwhile raises here
        groups.append(Group(name, rank, tp, runtime_dir=runtime_dir))
        groups[0].barrier("every rank has started")  # else a rank 0 that is quick is gone before the others come
        outcome = _Returned(pickle.dumps(fn(groups[0], *args)))
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent raises it
        outcome = _failed(error, rank)
    with contextlib.suppress(BrokenPipeError):  # no parent: this process is about to be ended
        pipe.send(outcome)  # before the goodbye that makes the other ranks fail
    for group in groups:
        group.close()
    pipe.close()
    if isinstance(outcome, _Failed):
        sys.exit(outcome.status)


def _failed(error: BaseException, rank: int) -> _Failed:
    when = time.monotonic()
    secondary = any(
        getattr(link, "secondary", False) or (isinstance(link, GroupError) and link.rank not in (-1, rank))
        for link in _chain(error)
    )
    summary, status = f"failed: {type(error).__name__}: {error}", 1
    if isinstance(error, SystemExit):
        # As the interpreter does: None is 0, a text goes to stderr and is 1.
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        summary = f"left with SystemExit({error.code!r})"
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        log.debug("the exception itself cannot be sent; its text is", exc_info=True)
        pickled = b""
    own = error.__traceback__
    trace = "".join(traceback.format_exception(type(error), error, own and own.tb_next))
    leaving = status if isinstance(error, SystemExit) else None  # where its process takes a while to end
    return _Failed(when, secondary, summary, trace, pickled, exitcode=leaving, status=status)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The exception and what it was raised from, or while handling: callers wrap ours in their own."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        yield at
        at = at.__cause__ or at.__context__


def _end_with_parent(parent: int, rank: int, groups: Sequence[Group]) -> None:
    """Asleep until the parent is gone; then this rank has nobody to report to."""
    ends = [process.sentinel] if (process := multiprocessing.parent_process()) else []
    if (pidfd := rv.open_pidfd(parent)) >= 0:
        ends.append(pidfd)
    if os.getppid() == parent:
        connection.wait(ends)
    log.error("rank %d (pid %d) ends: its parent, pid %d, is gone", rank, os.getpid(), parent)
    for group in groups:
        closing = threading.Thread(target=group.close, daemon=True)
        closing.start()
        closing.join(_ORPHAN_GRACE_S)
    os._exit(1)
