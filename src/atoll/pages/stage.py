"""The page of a run as one of its stages."""

from atoll.pages import report
from atoll.runs import Run, Stage, graph
from atoll.runs.records import ReportContents


def write(run: Run) -> Stage:
    """Write `report/report.html` from samples and networks."""
    node = graph.node(run, "report")
    stage, made_from = node.stage, node.made_from()
    if stage.begin(made_from):
        page = report.write_report(run, run.samples.path)
        stage.finish(made_from, [page.name], ReportContents(report=page.name))
    return stage
