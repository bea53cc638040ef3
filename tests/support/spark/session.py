"""Starting Spark for tests, with settings that make small queries quick."""

from __future__ import annotations

from typing import Any

from support.spark.home import brief_jvm

#: Whose files start no other program: Spark's own way starts `readlink` for each.
CHECKPOINT_FILES = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def start(master: str, *, remote: bool = False, **settings: str) -> Any:
    """Start a session, by Spark Connect if it is `remote`; underscores in the names of settings stand for dots."""
    from pyspark.sql import SparkSession

    named = SparkSession.builder.appName("fairsched-tests")
    builder = named.remote(master) if remote else named.master(master)
    options = brief_jvm()
    defaults = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": options,
        "spark.executor.extraJavaOptions": options,
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.metricsEnabled": "false",
        "spark.sql.streaming.checkpointFileManagerClass": CHECKPOINT_FILES,
    }
    for name, value in {**defaults, **{key.replace("_", "."): value for key, value in settings.items()}}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
