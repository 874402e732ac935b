"""Runs cells: in each round the floor and every peer, one after the other, the peers in turns."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from bench import child
from bench.child import Measured
from bench.peers.cell import Cell, PeerRun, PeerSizes
from bench.peers.peer import Peer, create
from bench.workspace import BenchError, subfolder

Say = Callable[[str], None]


@dataclass(slots=True)
class CellRounds:
    """What a cell came to, round by round."""

    cell: Cell
    floor: list[Measured] = field(default_factory=list)
    peers: dict[str, list[Measured]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    """Why a peer could not be measured."""
    left_out: list[str] = field(default_factory=list)
    """Peers that cannot do it, by their nature."""


class Measurement:
    """Peers that are installed and run, to be entered. Raises BenchError if one cannot be."""

    def __init__(self, folder: Path, names: Sequence[str], sizes: PeerSizes, say: Say) -> None:
        self._folder = folder
        self._sizes = sizes
        self._say = say
        self.peers: list[Peer] = [create(name) for name in names]
        self._stack = ExitStack()
        self._bases = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for peer in self.peers:
                self._say(f"installing {peer.name}, if it is not there")
                peer.install()
            for peer in self.peers:
                self._say(f"starting {peer.name}")
                folder = self._folder / peer.name
                folder.mkdir()
                stack.callback(peer.stop)
                peer.start(folder)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def measure(self, cell: Cell) -> CellRounds:
        """All rounds of a cell. A peer that fails is left out of its further rounds."""
        rounds = CellRounds(cell)
        able = [peer for peer in self.peers if self._is_able(peer, cell)]
        rounds.left_out = [peer.name for peer in self.peers if peer not in able]
        count = min(self._sizes.rounds, cell.rounds_max)
        for index in range(count):
            with subfolder(self._folder, "floor") as folder:
                given = {"directory": str(folder), **cell.parameters}
                rounds.floor.append(child.call(cell.module, "floor_round", given))
            turn = index % max(len(able), 1)
            for peer in [*able[turn:], *able[:turn]]:
                if peer.name in rounds.errors:
                    continue
                self._say(f"{cell.name}: {peer.name}, round {index + 1} of {count}")
                try:
                    measured = self._round(peer, cell)
                except BenchError as error:
                    rounds.errors[peer.name] = str(error)
                else:
                    rounds.peers.setdefault(peer.name, []).append(measured)
        return rounds

    def _is_able(self, peer: Peer, cell: Cell) -> bool:
        return peer.name not in cell.left_out and cell.segments <= peer.segments_max

    def _round(self, peer: Peer, cell: Cell) -> Measured:
        self._bases += 1
        module = importlib.import_module(cell.module)
        with subfolder(self._folder, f"{peer.name}-{self._bases}") as folder:
            run = PeerRun(
                peer=peer.name,
                address=peer.address(folder),
                base=f"cell{self._bases}",
                processes=peer.processes(),
                in_flight_max=peer.in_flight_max,
                sizes=self._sizes,
            )
            if hasattr(module, "suite_round"):
                return cast("Measured", module.suite_round(peer, run, folder, cell.parameters))
            return in_child(cell.module, "peer_round", run, cell.parameters)


def child_arguments(
    module: str, function: str, run: PeerRun, parameters: Mapping[str, Any]
) -> tuple[str, str, Mapping[str, object]]:
    """What `bench.child` takes for `module.function(run, **parameters)`."""
    arguments = {
        "module": module,
        "function": function,
        "run": run.to_json(),
        "parameters": dict(parameters),
    }
    return __name__, "call_round", arguments


def in_child(module: str, function: str, run: PeerRun, parameters: Mapping[str, Any]) -> Measured:
    """`module.function(run, **parameters)` in a fresh process. Raises BenchError."""
    return child.call(*child_arguments(module, function, run, parameters))


def call_round(
    module: str, function: str, run: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Measured:
    """What the fresh process does."""
    called = getattr(importlib.import_module(module), function)
    return cast("Measured", called(PeerRun.of(run), **parameters))
