"""The same job for a Celery and for a dramatiq worker: note whose it is, and be busy for a while."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import celery
import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from fairsched import Lanes
from fairsched.integrations.celery import fair_shares
from fairsched.integrations.dramatiq import FairShares
from fairsched.lanes import own_lanes

#: Weights, key, cost …; none: the worker as it comes.
ARGUMENTS: dict[str, Any] = json.loads(os.environ.get("FAIR_SHARES", "{}"))

app = celery.Celery("shares_app", broker=os.environ["BROKER_URL"])
app.conf.update(
    task_ignore_result=True,
    task_acks_late=True,
    worker_prefetch_multiplier=int(os.environ["WINDOW"]) // 2,
    broker_connection_retry_on_startup=True,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    broker_transport=os.environ.get("TRANSPORT"),
)
dramatiq.set_broker(RabbitmqBroker(url=os.environ["BROKER_URL"]))
own_lanes.IDLE = float(os.environ.get("IDLE", own_lanes.IDLE))
if "lanes" in ARGUMENTS:
    fair_shares(app, **{**ARGUMENTS, "lanes": Lanes(**ARGUMENTS["lanes"])})
elif ARGUMENTS:
    fair_shares(app, **{name: value for name, value in ARGUMENTS.items() if name != "key"},
                key=ARGUMENTS.get("key", "queue").replace("option:", "header:"))  # fmt: skip
    dramatiq.get_broker().add_middleware(FairShares(**ARGUMENTS))


def work(name: str, busy: float) -> None:
    """Be busy, and note when this began."""
    began = time.time()
    time.sleep(busy)
    with open(os.environ["DONE"], "a") as file:
        file.write(f"{name} {began}\n")


@app.task(name="again", bind=True, max_retries=1)
def again(task: celery.Task) -> None:
    """Note the try, the tenant and the queue, and retry once."""
    request = task.request
    work(f"{request.retries}:{request.headers['tenant']}:{request.delivery_info['routing_key']}", 0)
    if not request.retries:
        raise task.retry(countdown=0)


in_celery = app.task(name="work", ignore_result=True)(work)
in_dramatiq = {
    queue: dramatiq.actor(work, actor_name=queue, queue_name=queue, max_retries=0)
    for queue in os.environ["QUEUES"].split(",")
}


def send(framework: str, queue: str, name: str, busy: float, tenant: str = "") -> None:
    """Send a job."""
    if framework == "celery":
        in_celery.apply_async((name, busy), queue=queue, headers={"tenant": tenant})
    else:
        in_dramatiq[queue].send_with_options(args=(name, busy), tenant=tenant)


def await_broker() -> None:
    """Return when the broker has all jobs: what it has not handled of a connection that just ends, it drops."""
    dramatiq.get_broker().close()
    with app.producer_or_acquire() as producer:  # the one that was used before
        producer.channel.basic_qos(0, 1, False)  # answered in turn
