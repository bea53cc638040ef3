"""The files of a test run for each process: Spark's in one half of them, longest first."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

#: What takes longest, in this order; a folder stands for what is left of it. A process that begins with these is not
#: left alone with one at the end.
LONGEST = (
    "spark/test_recipes.py",
    "spark/pipeline/test_job.py",
    "spark/test_soak.py",
    "spark/test_faults.py",
    "spark/test_session.py",
    "spark/source/test_pauses.py",
    "spark/test_standalone.py",
    "spark/test_shipping.py",
    "spark/test_secrets.py",
    "spark/test_connect.py",
    "spark/source/test_queues.py",
    "spark/source/test_streams.py",
    "spark/",
    "integration/test_publishing.py",
    "integration/test_routing.py",
    "integration/test_recovery.py",
    "integration/broker/test_clients.py",
    "integration/test_retries.py",
    "integration/test_delayed_retries.py",
    "integration/test_soak.py",
    "integration/test_freshness.py",
    "integration/test_frameworks.py",
    "integration/test_prefetch.py",
    "integration/test_matrix.py",
    "integration/broker/test_durable.py",
    "integration/test_waits.py",
    "model/test_nodelist_model.py",
    "package/test_packaging.py",
    "integration/",
    "reentrancy/",
    "stress/",
)


def place(path: str) -> int:
    """Return how early a file is begun, by its path in `tests`."""
    return next((at for at, beginning in enumerate(LONGEST) if path.startswith(beginning)), len(LONGEST))


class SparkInOneHalf(LoadFileScheduling):
    """Give the files of Spark to every other process while there are any, and what else there is to the others.

    A driver wants several cores and a gigabyte, and a broker's test mostly waits: side by side they fill a machine, and
    half of the processes start no Spark unless it is all that is left.
    """

    def _assign_work_unit(self, node: WorkerController) -> None:
        wanted = int(node.gateway.id.removeprefix("gw")) % 2 == 0
        for scope in self.workqueue:
            if scope.startswith("tests/spark/") == wanted:
                self.workqueue.move_to_end(scope, last=False)
                break
        super()._assign_work_unit(node)
