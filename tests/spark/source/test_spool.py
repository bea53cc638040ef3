"""Segments are published once, read again, refused when they are late, and cleaned up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest
from support.spark.running import no_larger_files

from fairsched.errors import ConfigurationError
from fairsched.spark.source.spool import BatchGone, Segment, Spool, SpoolLost, SpoolNotWritable
from fairsched.spark.source.store import ObjectStore


def segment(*bodies: bytes, last: bool = True) -> Segment:
    rows = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})
    return Segment(rows, {"q": len(bodies)}, {"q": sum(map(len, bodies))}, {"q": 7}, last)


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "spool")


def opened(place: str, epoch: str = "e", *batches: int) -> Spool:
    spool = Spool(place, epoch)
    for seq in batches or (1,):
        spool.open_batch(seq, strict=True)
    return spool


def test_what_is_published_is_read_again(place: str):
    spool = opened(place)
    assert spool.published(1, 0, 1) is None
    assert spool.publish(1, 0, 1, segment(b"a", b"bc", last=False))
    found = Spool(place, "e").published(1, 0, 1)
    assert found.batch.to_pydict() == {"body": [b"a", b"bc"]}
    assert (found.counts, found.sizes, found.ages, found.last) == ({"q": 2}, {"q": 3}, {"q": 7}, False)


def test_a_place_that_is_full_is_named_with_what_to_do(place: str):
    spool = opened(place)
    with no_larger_files(1000), pytest.raises(SpoolNotWritable, match="free some space") as caught:
        spool.publish(1, 0, 1, segment(b"x" * 2000))
    assert f"spoolLocation {place!r} cannot be written to" in str(caught.value)
    assert "\n" not in str(caught.value)  # Spark's errors are shown by their last line
    assert spool.published(1, 0, 1) is None
    assert spool.publish(1, 0, 1, segment(b"x" * 2000))
    with no_larger_files(0), pytest.raises(ConfigurationError, match=r"spoolLocation .* free some space"):
        spool.refuse_foreign(strict=True)


def test_a_batch_that_cannot_be_opened_names_the_place(place: str):
    spool = opened(place)
    Path(place, "e", "0000000002").write_text("a file")
    with pytest.raises(SpoolNotWritable, match=f"spoolLocation '{place}' cannot be written to: .*(Exists|Directory)"):
        spool.open_batch(2, strict=True)


def test_no_other_user_can_read_a_spool(tmp_path: Path):
    before = os.umask(0)
    try:
        opened(str(tmp_path / "shared" / "spool")).publish(1, 0, 1, segment(b"secret"))
    finally:
        os.umask(before)
    modes = {path.relative_to(tmp_path).as_posix(): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    # What lies above may be other queries' way, too.
    assert modes.pop("shared") == 0o777
    folders = {name for name, mode in modes.items() if (tmp_path / name).is_dir()}
    assert {modes[name] for name in folders} == {0o700}
    assert len(modes) == 6
    assert {mode for name, mode in modes.items() if name not in folders} == {0o600}


def test_a_segment_without_rows_can_end_a_partition(place: str):
    opened(place).publish(1, 0, 1, segment())
    found = Spool(place, "e").published(1, 0, 1)
    assert found.last
    assert found.batch.num_rows == 0


def test_of_two_attempts_one_publishes(place: str):
    first, second = opened(place), Spool(place, "e")
    assert first.publish(1, 0, 1, segment(b"first"))
    assert not second.publish(1, 0, 1, segment(b"second"))
    assert second.published(1, 0, 1).batch.to_pydict() == {"body": [b"first"]}


def test_a_publication_whose_answer_was_lost_is_recognised(place: str):
    spool = opened(place)
    assert spool.publish(1, 0, 1, segment(b"a"))
    assert spool.publish(1, 0, 1, segment(b"a"))


def test_a_late_attempt_does_not_publish_into_a_committed_batch(place: str):
    planner, late = opened(place, "e", 1, 2), Spool(place, "e")
    planner.publish(1, 0, 1, segment(b"a"))
    planner.close_until(1)
    with pytest.raises(BatchGone, match="batch 1 of epoch e"):
        late.publish(1, 0, 1, segment(b"b"))
    with pytest.raises(BatchGone):
        late.check_open(1)
    late.check_open(2)
    # What it left behind goes with the next commit.
    planner.close_until(2)
    assert list(Path(place, "e").iterdir()) == [Path(place, "e", "epoch")]


def test_commit_removes_what_is_older_and_reports_what_was_read(place: str):
    spool = opened(place, "e", 1, 2, 3)
    for seq in (1, 2, 3):
        spool.publish(seq, 0, 1, segment(b"x" * seq))
    [found] = spool.close_until(2)
    assert (found.sizes, found.batch.num_rows) == ({"q": 2}, 0)
    assert sorted(path.name for path in Path(place, "e").iterdir()) == ["0000000003", "epoch"]
    assert spool.close_until(2) == []


def test_another_checkpoints_files_are_refused_by_their_epoch(place: str):
    opened(place, "old").publish(1, 0, 1, segment(b"a"))
    with pytest.raises(SpoolLost, match="epoch old"):
        Spool(place, "new").refuse_foreign(strict=True)
    Spool(place, "new").refuse_foreign(strict=False)
    Spool(place, "old").refuse_foreign(strict=True)


def test_an_epoch_without_batches_is_harmless(place: str):
    opened(place, "old").close_until(1)
    Spool(place, "new").refuse_foreign(strict=True)


def test_a_spool_that_vanished_is_refused(place: str):
    with pytest.raises(SpoolLost, match="lost epoch e"):
        Spool(place, "e").open_batch(5, strict=True)
    Spool(place, "e").open_batch(5, strict=False)
    # Nothing can be missing before the first batch, nor once the epoch is there.
    Spool(f"{place}-f", "f").open_batch(1, strict=True)
    Spool(place, "e").open_batch(6, strict=True)


def test_of_two_queries_that_start_together_one_at_most_goes_on(place: str):
    first, second = Spool(place, "e"), Spool(place, "f")
    first.refuse_foreign(strict=True)
    second.refuse_foreign(strict=True)
    first.open_batch(1, strict=True)
    with pytest.raises(SpoolLost, match=r"another query has begun to use spoolLocation .* \(epoch e\)"):
        second.open_batch(1, strict=True)
    # What the first one has is left alone, and nothing of the second one stays.
    assert first.publish(1, 0, 1, segment(b"a"))
    first.open_batch(1, strict=True)
    Spool(place, "e").refuse_foreign(strict=True)
    second.open_batch(1, strict=False)
    # A query that goes on keeps what it has, whichever others came meanwhile.
    first.open_batch(1, strict=True)
    assert first.counts(1, 0) == {"q": 1}


def test_a_planner_needs_no_pandas(tmp_path: Path):
    spool = Spool(str(tmp_path), "e")
    spool.open_batch(1, strict=True)
    assert spool.publish(1, 0, 1, Segment(pa.RecordBatch.from_pydict({"a": [1]}), {"q": 1}, {"q": 8}))
    program = (
        "import sys; from fairsched.spark.source.spool import Spool; import fairsched.spark.source.queues; "
        f"assert Spool({str(tmp_path)!r}, 'e').counts(1, 0) == {{'q': 1}}; "
        f"assert Spool({str(tmp_path)!r}, 'e').close_until(1); assert 'pandas' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_segment_of_very_many_queues(place: str, monkeypatch: pytest.MonkeyPatch):
    spool = opened(place)
    monkeypatch.setattr(spool, "_store", ObjectStore(fsspec.filesystem("memory"), place))
    spool.open_batch(1, strict=True)
    counts = {f"orders-of-the-tenant-{number:080d}": 1 for number in range(10_000)}
    rows = pa.RecordBatch.from_pydict({"body": pa.array([b"a"] * len(counts), pa.binary())})
    assert spool.publish(1, 0, 1, Segment(rows, counts, counts))
    assert spool.counts(1, 0) == counts
    [found] = spool.close_until(1)
    assert found.sizes == counts
