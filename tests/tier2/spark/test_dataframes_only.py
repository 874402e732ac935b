"""The jobs are written for Spark Connect as well: what only classic sessions have is in no module
but two.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

JOBS = Path(__file__).resolve().parents[3] / "tier2" / "spark"
CLASSIC = {
    "SparkContext",
    "sparkContext",
    "_active_spark_context",
    "_jdf",
    "_jsc",
    "_jsparkSession",
    "_jvm",
    "_sc",
    "accumulator",
    "broadcast",
    "rdd",
}
"""Names of the RDD world, and the ways to its JVM."""
EXCEPTIONS = {
    "common/progress.py": {"sparkContext"},
    "common/session.py": {"SparkContext", "_active_spark_context", "sparkContext"},
}
"""Named in the docstring of tier2.spark; that they are guarded is for the tests by Connect to
see.
"""
_FUNCTIONS = {"F", "functions", "sf"}


def classic_names(source: str) -> set[str]:
    """What a module has of CLASSIC, as a name, an attribute, an import or a string;
    `functions.broadcast` is a hint to a DataFrame.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            hint = (
                node.attr == "broadcast"
                and isinstance(node.value, ast.Name)
                and node.value.id in _FUNCTIONS
            )
            found |= set() if hint else {node.attr}
        elif isinstance(node, ast.ImportFrom):
            found |= (
                set()
                if node.module == "pyspark.sql.functions"
                else {alias.name for alias in node.names}
            )
        elif isinstance(node, ast.Name):
            found |= {node.id} - {"broadcast"}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    return found & CLASSIC


def test_only_two_modules_have_anything_of_classic_sessions() -> None:
    modules = sorted(JOBS.rglob("*.py"))
    assert len(modules) > 20
    found = {str(path.relative_to(JOBS)): classic_names(path.read_text()) for path in modules}
    assert {module: names for module, names in found.items() if names} == EXCEPTIONS


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("spark.sparkContext.parallelize([1])", {"sparkContext"}),
        ("from pyspark import SparkContext", {"SparkContext"}),
        ("import pyspark\npyspark.SparkContext.getOrCreate()", {"SparkContext"}),
        ("getattr(spark, 'sparkContext')", {"sparkContext"}),
        ("frame.rdd.map(str)", {"rdd"}),
        ("context.broadcast(table)", {"broadcast"}),
        ("from pyspark import broadcast", {"broadcast"}),
        ("context.accumulator(0)", {"accumulator"}),
        ("from pyspark.sql import functions\nfunctions.broadcast(frame)", set()),
        ("from pyspark.sql.functions import broadcast\nbroadcast(frame)", set()),
        ("'no SparkContext in the jobs'", set()),
    ],
)
def test_they_are_found_wherever_they_stand(source: str, names: set[str]) -> None:
    assert classic_names(source) == names
