"""Mutants of the log (DESIGN 4.2): what is durable, how it is read, and how it is cut."""

from __future__ import annotations

from typing import Final

from recovery.harness.mutants.differing_repeats import DifferingRepeats
from recovery.harness.mutants.mutant import Edit, Hunt, Mutant
from recovery.harness.runs.directed import BUSY

_WRITER: Final = "durablelog.file.group_writer:GroupWriter"
_STATE: Final = "durablelog.file.log_state:StateFile"
_READER: Final = "durablelog.data_frame_reader:DataFrameReader"
_MAKING: Final = tuple(
    {"operations": 5, "ending": "power", "dies_at": at} for at in (9, 10, 11, 12, 13, 14, 15, 16)
)

LOG: Final = (
    Mutant(
        "acknowledged-before-the-sync",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "Frames are written to the log file and not synced.",
        (Edit(f"{_WRITER}.commit", "group.file.sync()", "pass"),),
        Hunt(workload="appends"),
        bugs=("B18",),
    ),
    Mutant(
        "file-named-and-folder-not-synced",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "A new log file's name is not made durable before its frames are acknowledged.",
        (Edit(f"{_WRITER}._name", "self._disk.sync_directory(self._directory)", "pass"),),
        Hunt(workload="appends", settings={**BUSY}),
    ),
    Mutant(
        "header-not-synced",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "A log file gets its name before its header, and what was copied into it, is durable.",
        (Edit(f"{_WRITER}._name", "prepared.file.sync()", "pass"),),
        Hunt(
            workload="appends",
            settings={**BUSY},
            cycles=(
                {"ending": "power", "dies_before": "log.write"},
                {"ending": "power", "dies_after": "log.link", "nth": 2},
            ),
        ),
    ),
    Mutant(
        "state-folder-not-synced",
        "4.2 Order: checkpoint durable, new truncation address durable, delete.",
        "A new state record's name is not made durable before what it replaces is removed.",
        (Edit(f"{_STATE}._follow", "self._disk.sync_directory(self._directory)", "pass"),),
        Hunt(
            settings={**BUSY},
            cycles=tuple(
                {
                    "ending": "power",
                    "dies_before": "log.sync-directory",
                    "nth": nth,
                    "dies_at": None,
                }
                for nth in (3, 4, 5, 6, 7, 8)
            ),
        ),
    ),
    Mutant(
        "state-not-synced",
        "4.2 Order: checkpoint durable, new truncation address durable, delete.",
        "A new state record is not durable when it takes the place of the one before.",
        (Edit(f"{_STATE}._follow", "file.sync()", "pass"),),
        Hunt(workload="appends", settings={**BUSY}),
    ),
    Mutant(
        "files-removed-first",
        "4.2 Order: checkpoint durable, new truncation address durable, delete.",
        "The files before a truncation point are removed before the state says so.",
        (
            Edit(
                "durablelog.file.log_folder:LogFolder.truncate",
                "self._state.truncate(address, sequence)",
                "for old in self._files:\n"
                "    if old.number < number:\n"
                "        remove_if_there(self.disk, old.path)\n"
                "self._state.truncate(address, sequence)",
            ),
        ),
        Hunt(
            settings={**BUSY},
            cycles=({"ending": "kill", "dies_before": "state.link", "nth": 3, "dies_at": None},),
        ),
    ),
    Mutant(
        "truncated-past-the-unflushed",
        "4.2 Only a checkpoint is a truncation point: the newest with everything before "
        "it in Tier 2.",
        "The log is truncated at its newest checkpoint whether or not Tier 2 has what "
        "lies before it.",
        (
            Edit(
                "storagewriter.storage_writer:StorageWriter.first_unflushed_sequence",
                "return self._pending.first_sequence_number()",
                "return None",
            ),
        ),
        Hunt(settings={**BUSY}),
        bugs=("B7",),
    ),
    Mutant(
        "truncated-one-checkpoint-too-far",
        "4.2 Only a checkpoint is a truncation point: the newest with everything before "
        "it in Tier 2.",
        "The log is truncated at the first checkpoint behind what Tier 2 lacks, in the "
        "place of the last one before it.",
        (
            Edit(
                "durablelog.log_positions:LogPositions.truncation_point",
                "return self._checkpoints[index - 1] if index > 1 else None",
                "return self._checkpoints[min(index, len(self._checkpoints) - 1)] if "
                "self._checkpoints else None",
            ),
        ),
        Hunt(settings={**BUSY}),
    ),
    Mutant(
        "truncated-within-a-checkpoint",
        "4.2 The first operation found after a truncation is a checkpoint.",
        "The truncation point is the frame in which a checkpoint ends.",
        (
            Edit(
                "durablelog.frame_commits:FrameCommits._note_positions",
                "self._positions.add_checkpoint(last.sequence_number, self._checkpoint_start)",
                "self._positions.add_checkpoint(last.sequence_number, address)",
            ),
        ),
        Hunt(settings={**BUSY}),
    ),
    Mutant(
        "payloads-not-checked",
        "4.2 The checksum binds bytes to their address; an incomplete last frame is a "
        "torn tail and is cut.",
        "A frame whose payload does not fit its checksum is taken for whole.",
        (
            Edit(
                "durablelog.data_frame:payload_fault",
                "if crc32c(payload) != header.payload_checksum:",
                "if False:",
            ),
        ),
        Hunt(
            workload="appends",
            settings={
                "frame_bytes_max": 4000,
                "log_file_bytes": 60_000,
                "in_flight_bytes_max": 1 << 20,
            },
            cycles=(
                {
                    "ending": "power",
                    "dies_before": "log.sync",
                    "operations": 300,
                    "dies_at": None,
                    "nth": 6,
                },
            ),
        ),
    ),
    Mutant(
        "damage-taken-for-a-torn-tail",
        "4.2 Anything invalid with valid frames behind it is corruption: stop.",
        "The log ends at the first frame that is not whole, whatever lies behind it.",
        (
            Edit(
                "durablelog.file.log_scanner:LogWalk._proof",
                "expected = self._expected",
                "return None",
            ),
        ),
        Hunt(
            workload="appends", cycles=({"ending": "power"}, {"ending": "power", "rot": "rot.log"})
        ),
        bugs=("B19",),
    ),
    Mutant(
        "more-promised-than-is-durable",
        "4.2 An incomplete last frame with nothing valid behind it is a torn tail and is cut.",
        "Every frame of a group says that the one before it was durable, and a torn "
        "group looks like corruption.",
        (
            Edit(
                f"{_WRITER}.put",
                "pack_header(container_id, epoch, sequence, durable_through, length, checksum)",
                "pack_header(container_id, epoch, sequence, sequence - 1, length, checksum)",
            ),
        ),
        Hunt(
            workload="appends",
            settings={
                "frame_bytes_max": 200,
                "log_file_bytes": 30_000,
                "in_flight_bytes_max": 1 << 20,
            },
            process_runs=12,
            cycles=tuple(
                {
                    "ending": "power",
                    "dies_before": "log.sync",
                    "operations": 300,
                    "dies_at": None,
                    "nth": nth,
                }
                for nth in (3, 5, 8, 12)
            ),
        ),
    ),
    Mutant(
        "found-taken-for-durable",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "Frames that were read back and never synced are not written again by the next owner.",
        (
            Edit(
                "durablelog.file.group_writer:_unconfirmed_frames",
                "if scan.unconfirmed_position is None:",
                "scan.unconfirmed_position = None\nif scan.unconfirmed_position is None:",
            ),
        ),
        Hunt(
            workload="appends",
            cycles=(
                {"ending": "kill", "dies_before": "log.sync", "nth": 5, "dies_at": None},
                {"ending": "power", "dies_at": 40},
            ),
        ),
    ),
    Mutant(
        "repeated-frames-kept",
        "4.2 A repeated frame (same sequence number, same content) is dropped before reassembly.",
        "A frame that the log holds twice is applied twice.",
        (
            Edit(
                f"{_READER}._accept",
                "self.repeated += 1\nreturn False",
                "self.repeated += 1\nreturn True",
            ),
        ),
        Hunt(workload="appends", tier1="ledger", rates={"ledger.append.repeated": 0.1}),
    ),
    Mutant(
        "differing-repeats-dropped",
        "4.2 A repeated frame with different content under the same number is corruption.",
        "Any frame whose number came before is dropped as a repetition.",
        (
            Edit(
                f"{_READER}._accept",
                "if content in self._recent:",
                "if any(recent[0] == frame.sequence for recent in self._recent):",
            ),
        ),
        Hunt(
            workload="appends",
            tier1="ledger",
            rates={"ledger.append.repeated": 0.2},
            scenario=DifferingRepeats,
        ),
    ),
    Mutant(
        "cut-record-taken-for-whole",
        "4.2 An operation cut by the end of the log was never acknowledged and is dropped.",
        "The pieces of a record whose owner died in the middle are taken for the record.",
        (
            Edit(
                f"{_READER}._piece",
                "self.dropped += 1\nself._open = None",
                "self._open = None\nreturn Record(b''.join(current.pieces), "
                "current.first_frame_address, frame.address)",
            ),
        ),
        Hunt(workload="appends", settings={"frame_bytes_max": 64}),
    ),
    Mutant(
        "files-of-others-written-over",
        "4.2 Opening fences: what an old owner may still write to must not count.",
        "A truncated file that an earlier owner began is used again for new frames.",
        (Edit("durablelog.file.spare_files:SpareFiles.keep", "not file.rolled or", "False or"),),
        Hunt(
            settings={**BUSY},
            cycles=tuple(
                {"ending": "kill", "dies_after": "log.sync-directory", "nth": nth, "dies_at": None}
                for nth in (3, 4, 5, 6, 7, 8)
            ),
        ),
    ),
    Mutant(
        "folders-found-not-synced",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "A folder that is there counts as durable, though a process may have died "
        "between making it and syncing its parent.",
        (
            Edit(
                "segmentstore.contracts.disk:make_directories",
                "try:\n    disk.sync_directory(parent)",
                "try:\n    disk.exists(parent)",
            ),
        ),
        Hunt(
            cycles=(
                {"ending": "kill", "dies_after": "folder.make", "dies_at": None},
                {"ending": "power", "dies_at": 150, "operations": 60},
                {"ending": "kill", "dies_after": "folder.make", "nth": 1, "dies_at": None},
                {"ending": "power", "dies_at": 150, "operations": 60},
            ),
            process_runs=4,
        ),
    ),
    Mutant(
        "folders-made-and-not-synced",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "The name of a new folder is not made durable before something durable is put into it.",
        (
            Edit(
                "segmentstore.contracts.disk:make_directories",
                "disk.make_directory(path)",
                "disk.make_directory(path)\nreturn",
            ),
        ),
        Hunt(process_runs=2),
    ),
    Mutant(
        "settings-not-synced",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "The store's own file is given its name before its bytes are durable.",
        (Edit("segmentstore.store_folder:write_store_file", "file.sync()", "pass"),),
        Hunt(process_runs=4, cycles=_MAKING),
    ),
    Mutant(
        "store-file-found-not-synced",
        "4.2 A frame is acknowledged only when it and all before it are durable.",
        "The store's own file counts as durable where it is found, though its maker may "
        "have died before the folder's sync.",
        (
            Edit(
                "segmentstore.locked_folder:lock_store_folder",
                "disk.sync_directory(location)",
                "pass",
            ),
        ),
        # Without a log in files: the making of its folders syncs the store's folder, too.
        Hunt(
            tier1="ledger",
            process_runs=4,
            cycles=(
                {"ending": "kill", "dies_after": "store.link", "dies_at": None},
                {"ending": "power", "operations": 60, "dies_at": 150},
            ),
        ),
    ),
)
