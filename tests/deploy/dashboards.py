#!/usr/bin/env python3
"""The dashboards of deploy/grafana as files: what they ask Prometheus, and the rules that hold
without one. Run by itself it checks the rules; watch_a_job.py asks the queries.
"""
import itertools
import json
import pathlib
import re
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
FOLDER = REPOSITORY / "deploy" / "grafana"
COLUMNS = 24  # of Grafana's grid
# What Grafana puts in for its own variables, for a scrape each second.
GRAFANA = {"__rate_interval": "1m", "__interval": "15s", "__range": "5m"}
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::\w+)?\}|(\w+))")
LABEL_VALUES = re.compile(r"label_values\((?:(?P<selector>.+),\s*)?(?P<label>\w+)\)$")
METRIC = re.compile(r"\b(?:\w+:)?espalier_\w+(?::\w+)?")
OF_PROMETHEUS = re.compile(r"\b(up|ALERTS)\{")


class Dashboard:
    def __init__(self, path):
        self.path = path
        self.model = json.loads(path.read_text(encoding="utf-8"))

    @property
    def variables(self):
        return self.model["templating"]["list"]

    def panels(self):
        """All but rows; those of collapsed rows too."""
        for panel in self.model["panels"]:
            if panel["type"] == "row":
                yield from panel["panels"]
            else:
                yield panel

    def queries(self):
        """(where, expression) of every target of every panel."""
        for panel in self.panels():
            for target in panel["targets"]:
                yield f"{self.path.name}: {panel['title']} {target['refId']}", target["expr"]


def load():
    return [Dashboard(path) for path in sorted(FOLDER.glob("*.json"))]


def put_in(expression, values):
    """The expression with the value of each variable; KeyError: there is no such variable."""
    return VARIABLE.sub(lambda match: values[match[1] or match[2]], expression)


def known_metrics():
    """Those of the headers, as Prometheus stores them, and what the rules record."""
    headers = ("metric_names.h", "task_figures.h")
    header = "".join((REPOSITORY / "common/observe" / name).read_text(encoding="utf-8")
                     for name in headers)
    known = set()
    for name, kind in re.findall(r'"(espalier_\w+)",\s*MetricKind::k(\w+)', header):
        parts = ("_bucket", "_sum", "_count") if kind == "Histogram" else ("",)
        known |= {name + part for part in parts}
    rules = (REPOSITORY / "deploy/prometheus/rules.yml").read_text(encoding="utf-8")
    return known | set(re.findall(r"record: (\S+)", rules))


def overlaps(one, other):
    return (one["x"] < other["x"] + other["w"] and other["x"] < one["x"] + one["w"] and
            one["y"] < other["y"] + other["h"] and other["y"] < one["y"] + one["h"])


def grid_problems(panels):
    for panel in panels:
        place = panel["gridPos"]
        if place["x"] < 0 or place["w"] < 1 or place["h"] < 1 or place["x"] + place["w"] > COLUMNS:
            yield f"{panel['title']}: {place} is not within {COLUMNS} columns"
        yield from grid_problems(panel.get("panels", []))
    for one, other in itertools.combinations(panels, 2):
        if overlaps(one["gridPos"], other["gridPos"]):
            yield f"{one['title']} and {other['title']} overlap"


def panel_problems(panel):
    name = panel.get("title") or f"panel {panel['id']}"
    for key in ("title", "description"):
        if not panel.get(key):
            yield f"{name}: no {key}"
    if not panel["fieldConfig"]["defaults"].get("unit"):
        yield f"{name}: no unit; 'none' for a plain number"
    if not panel["targets"]:
        yield f"{name}: asks nothing"
    for part in (panel, *panel["targets"]):
        if part["datasource"] != {"type": "prometheus", "uid": "${datasource}"}:
            yield f"{name}: asks {part['datasource']}, not the data source that was chosen"
    if len({target["refId"] for target in panel["targets"]}) != len(panel["targets"]):
        yield f"{name}: two targets of one refId"


def query_problems(where, expression, variables, known):
    for match in VARIABLE.finditer(expression):
        if (match[1] or match[2]) not in variables:
            yield f"{where}: no variable {match[0]}"
    metrics = METRIC.findall(expression)
    if not metrics and not OF_PROMETHEUS.search(expression):
        yield f"{where}: asks for no metric: {expression}"
    for metric in metrics:
        if metric not in known:
            yield f"{where}: neither common/observe nor the rules have {metric}"


def problems_of(dashboard, known):
    model = dashboard.model
    if model["id"] is not None:
        yield "'id' is that of one Grafana; null lets each give its own"
    for panel in dashboard.panels():
        yield from panel_problems(panel)
    yield from grid_problems(model["panels"])
    numbers = [panel["id"] for panel in dashboard.panels()]
    numbers += [panel["id"] for panel in model["panels"] if panel["type"] == "row"]
    if len(set(numbers)) != len(numbers):
        yield "two panels of one id"
    variables = {variable["name"]: variable for variable in dashboard.variables}
    if variables.get("datasource", {}).get("query") != "prometheus":
        yield "no variable 'datasource' that is a Prometheus"
    for name, variable in variables.items():
        if variable["type"] == "query" and not LABEL_VALUES.match(variable["query"]["query"]):
            yield f"variable {name}: {variable['query']['query']} is no label_values()"
    for where, expression in dashboard.queries():
        yield from query_problems(where, expression, {*variables, *GRAFANA}, known)


def main():
    dashboards = load()
    known = known_metrics()
    problems = [f"{dashboard.path.name}: {problem}" for dashboard in dashboards
                for problem in problems_of(dashboard, known)]
    for key in ("uid", "title"):
        if len({dashboard.model[key] for dashboard in dashboards}) != len(dashboards):
            problems.append(f"two dashboards of one {key}")
    names = {dashboard.path.stem for dashboard in dashboards}
    if not {"cluster", "job", "node"} <= names:
        problems.append(f"{FOLDER} has {sorted(names)}; expected cluster, job and node")
    if problems:
        sys.exit("\n".join(problems))
    queries = sum(len(list(dashboard.queries())) for dashboard in dashboards)
    print(f"{len(dashboards)} dashboards, {queries} queries, {len(known)} metrics")


if __name__ == "__main__":
    main()
