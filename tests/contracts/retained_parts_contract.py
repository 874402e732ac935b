"""What every DurableDataLog must do with parts that it retains in front of its truncation point;
part of its contract.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from durablelog.durable_data_log import DurableDataLog, SealedPart
from segmentstore.contracts.errors import ContainerStoppedError, NotPrimaryError
from segmentstore.contracts.ledgers import LedgerNotFoundError
from tests.contracts.log_parts_contract import (
    LogPartsContract,
    contents,
    entries_of_parts,
    read_entries,
)
from tests.contracts.log_world import append_all, payload, read_all


def without_times(parts: Sequence[SealedPart]) -> list[SealedPart]:
    return [part._replace(sealed_ms=0) for part in parts]


def oldest(log: DurableDataLog) -> int | None:
    """Asked anew each time."""
    return log.first_retained


def size_of(parts: Sequence[SealedPart]) -> int:
    return sum(part.length for part in parts)


class RetainedPartsContract(LogPartsContract):
    """In `DurableDataLogContract`, which says how to join."""

    async def retained(self, log: DurableDataLog) -> tuple[list[SealedPart], list[SealedPart]]:
        """The parts that a truncation to the log's last frame deletes, and those it retains."""
        await append_all(log, range(1000, 1003))
        parts = log.sealed_parts()
        first = parts[1].number
        last = (await read_all(log))[-1].address
        await log.truncate(last, retain_from=first)
        before = [part for part in parts if part.end <= last]
        return before[:1], before[1:]

    def test_parts_are_retained_in_front_of_the_truncation_point(self) -> None:
        async def main() -> None:
            log = await self.lived()
            entries = await entries_of_parts(log)
            assert oldest(log) is None
            assert log.statistics().retained_bytes == 0
            deleted, kept = await self.retained(log)
            assert len(kept) >= 2
            assert oldest(log) == kept[0].number
            assert log.statistics().retained_bytes == size_of(kept)
            assert log.statistics().log_bytes < kept[0].length, "what an opening reads"
            assert len(await read_all(log)) == 1
            listed = log.sealed_parts()
            assert without_times(listed)[: len(kept)] == without_times(kept)
            for index, part in enumerate(listed):
                assert log.sealed_parts(part.number) == listed[index + 1 :]
            found = await entries_of_parts(log)
            for part in kept:
                assert found[part.number] == entries[part.number]
            with pytest.raises(LedgerNotFoundError):
                await log.open_part(deleted[0].number)
            await log.close()

        self.run(main())

    def test_they_stay_for_the_next_owner_who_reads_none_of_them(self) -> None:
        async def main() -> None:
            log = await self.lived()
            _, kept = await self.retained(log)
            entries = await entries_of_parts(log)
            frames = contents(await read_all(log))
            await log.close()
            self.world.usurp()
            for _ in range(2):
                log = await self.opened()
                assert [frame[1:] for frame in contents(await read_all(log))] == [
                    frame[1:] for frame in frames
                ]
                assert oldest(log) == kept[0].number
                assert log.statistics().retained_bytes == size_of(kept)
                listed = without_times(log.sealed_parts())
                assert listed[: len(kept)] == without_times(kept)
                found = await entries_of_parts(log)
                assert all(found[part.number] == entries[part.number] for part in kept)
                await log.close()
            log = await self.opened()
            await append_all(log, range(2000, 2100))
            more = [part for part in log.sealed_parts() if part.number > kept[-1].number]
            last = (await read_all(log))[-1].address
            await log.truncate(last, retain_from=kept[1].number)
            assert [part.number for part in log.sealed_parts()][: len(kept)] == [
                part.number for part in kept
            ], "what is retained already stays"
            kept += [part for part in more if part.end <= last]
            assert log.statistics().retained_bytes == size_of(kept)
            await log.close()

        self.run(main())

    def test_they_are_deleted_for_good_from_the_oldest_on(self) -> None:
        async def main() -> None:
            log = await self.lived()
            _, kept = await self.retained(log)
            for part in kept[:-1]:
                await log.delete_retained(part.number)  # nothing is below it any more
                assert oldest(log) == part.number
                await log.delete_retained(part.number + 1)
                with pytest.raises(LedgerNotFoundError):
                    await log.open_part(part.number)
            assert log.statistics().retained_bytes == kept[-1].length
            await log.close()
            log = await self.opened()
            assert oldest(log) == kept[-1].number
            await log.delete_retained()
            await log.delete_retained()
            assert oldest(log) is None
            assert log.statistics().retained_bytes == 0
            await log.close()
            log = await self.opened()
            assert oldest(log) is None
            assert not {part.number for part in kept} & {part.number for part in log.sealed_parts()}
            assert len(await read_all(log)) == 1
            await log.close()

        self.run(main())

    def test_a_truncation_that_retains_nothing_leaves_what_is_retained(self) -> None:
        async def main() -> None:
            log = await self.lived()
            _, kept = await self.retained(log)
            await append_all(log, range(2000, 2100))
            await log.truncate((await read_all(log))[-1].address)
            assert log.statistics().retained_bytes == size_of(kept)
            listed = {part.number for part in log.sealed_parts()}
            assert {part.number for part in kept} <= listed
            await log.close()

        self.run(main())

    def test_a_retained_part_that_is_open_stays_until_it_is_closed(self) -> None:
        async def main() -> None:
            log = await self.lived()
            entries = await entries_of_parts(log)
            part = log.sealed_parts()[1]
            early = await log.open_part(part.number)
            await self.retained(log)
            late = await log.open_part(part.number)
            assert log.statistics().held_bytes == 0
            await log.delete_retained()
            assert log.statistics().held_bytes in {0, part.length}
            await append_all(log, range(2000, 2100))
            for handle in (early, late):
                assert await read_entries(handle) == entries[part.number]
                await handle.close()
            assert log.statistics().held_bytes == 0
            await log.close()

        self.run(main())

    def test_frames_are_read_on_though_their_part_is_retained_and_deleted(self) -> None:
        async def main() -> None:
            log = await self.lived()
            frames = contents(await read_all(log))
            reading = log.read()
            found = contents(list(await anext(reading)))
            await self.retained(log)
            await log.delete_retained()
            async for batch in reading:
                found += contents(list(batch))
            assert found[: len(frames)] == frames
            await log.close()

        self.run(main())

    def test_a_fenced_owner_deletes_nothing_of_them(self) -> None:
        async def main() -> None:
            log = await self.lived()
            _, kept = await self.retained(log)
            self.world.usurp()
            new = await self.opened()
            with pytest.raises(NotPrimaryError):
                await log.delete_retained()
            assert oldest(new) == kept[0].number
            entries = await entries_of_parts(new)
            assert {part.number for part in kept} <= entries.keys()
            await new.append([payload(1)])
            await log.close()
            with pytest.raises(ContainerStoppedError):
                await log.delete_retained()
            await new.close()

        self.run(main())
