"""One Spark session for all tests of a pytest process: a session costs 5 s and more, a query a
fraction of one.

`local[2,4]`: two tasks at once, and four attempts each, or no test could see a task retried. A test
that needs a cluster, Connect or a kill starts processes (test_ways_to_run.py).
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from recovery.harness.services.s3_servers import credentials
from recovery.harness.services.spark_cluster import SHORT_LIVED

_CLASSIC = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_API_MODE", "MASTER")
"""Would make it another session than this one."""


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """The session; `tier2.spark.common.session.spark_session` gives the same one."""
    folder = Path(tempfile.mkdtemp(prefix="segmentstore-spark-tests-"))
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "4",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": SHORT_LIVED,
        "spark.python.daemon.module": "tests.tier2.spark.warm_daemon",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    submit = ["--master", "local[2,4]", "--driver-memory", "2g", *options, "pyspark-shell"]
    before = dict(os.environ)
    for name in _CLASSIC:
        os.environ.pop(name, None)
    os.environ["PYSPARK_SUBMIT_ARGS"] = shlex.join(submit)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    # Tasks have the environment of the JVM: by it they find the credentials of the tests' S3
    # servers, and this process does not.
    os.environ.update(credentials())
    session = SparkSession.builder.appName("segmentstore tests").getOrCreate()
    for name in credentials():
        os.environ.pop(name)
        os.environ.update({name: before[name]} if name in before else {})
    yield session
    session.stop()
    os.environ.clear()
    os.environ.update(before)
    shutil.rmtree(folder, ignore_errors=True)
