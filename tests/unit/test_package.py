"""What is published: one version everywhere, one list of dependencies, a workflow and files that name what exists."""

from __future__ import annotations

import ast
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
INDIRECT = {"cryptography", "triton"}  # come with flwr, and with torch where there is a GPU
CONDA = {"torch": "pytorch", "matplotlib": "matplotlib-base"}  # names that differ there
RELEASE = ROOT / "tools" / "release.py"
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))


def recipe() -> dict:
    text = (ROOT / "packaging" / "conda" / "meta.yaml").read_text("utf-8")
    return yaml.safe_load(re.sub(r"{{ (\w+) }}", r"\1", re.sub(r"^{%.*%}$", "", text, flags=re.MULTILINE)))


def bounds(lines: list[str]) -> dict[str, str]:
    """The bound of each package, whatever the spaces."""
    split = [re.match(r"([\w-]+)(?:\[\w+\])?\s*(\S*)$", line) for line in lines]
    return {found.group(1): found.group(2) for found in split if found}


def test_the_recipe_for_conda_has_the_dependencies_of_the_project():
    run = bounds(recipe()["requirements"]["run"])
    assert run.pop("python") == PROJECT["requires-python"]
    assert run == bounds(PROJECT["dependencies"])


def test_what_is_imported_is_a_dependency_by_its_own_name():
    """Not through another package: typer 0.26 no longer brings click, and what pip had installed could not start."""
    named = bounds([*PROJECT["dependencies"], *(d for more in PROJECT["optional-dependencies"].values() for d in more)])
    called = {
        "dp_accounting": "dp-accounting",
        "flwr_datasets": "flwr-datasets",
        "sklearn": "scikit-learn",
        "PIL": "pillow",
        "yaml": "pyyaml",
    }
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add((node.module or "").split(".")[0])
    theirs = imported - set(sys.stdlib_module_names) - {"fedscape"}
    assert {called.get(name, name) for name in theirs} - set(named) == INDIRECT


def test_optional_packages_of_the_recipe_have_the_bounds_of_the_extras():
    extras = bounds([line for lines in PROJECT["optional-dependencies"].values() for line in lines])
    for name, bound in bounds(recipe()["requirements"]["run_constrained"]).items():
        assert bound == extras[{theirs: ours for ours, theirs in CONDA.items()}.get(name, name)], name


def test_the_recipe_tries_what_the_workflow_and_make_dist_try():
    tried = runpy.run_path(str(ROOT / "tools" / "dist.py"))["TRIED"]
    assert recipe()["test"]["commands"] == [shlex.join(["fedscape", *words]) for words in tried]
    steps = [step.get("run", "") for step in WORKFLOW["jobs"]["try"]["steps"]]
    assert [step for step in steps if step.startswith("fedscape")] == recipe()["test"]["commands"]


def test_classifiers_name_the_pythons_that_are_allowed():
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    named = [c.split(" :: ")[-1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
    assert named == [f"3.{minor}" for minor in range(int(low), int(high))]
    assert WORKFLOW["jobs"]["try"]["strategy"]["matrix"]["python"] == named


@pytest.mark.parametrize("path", ["Makefile", "README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_pythons_that_are_named_are_those_that_are_allowed(path):
    named = re.findall(r"Python 3\.(\d+) to 3\.(\d+)", (ROOT / path).read_text("utf-8"))
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    assert named
    assert set(named) == {(low, str(int(high) - 1))}


def test_make_takes_the_pythons_that_are_allowed():
    (bounds,) = re.findall(r"\((3, \d+)\) <= sys.version_info\[:2\] <= \((3, \d+)\)", (ROOT / "Makefile").read_text())
    low, high = re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups()
    assert bounds == (f"3, {low}", f"3, {int(high) - 1}")


def test_every_file_with_a_version_has_the_same():
    done = subprocess.run([sys.executable, RELEASE], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_notes_of_a_release_are_its_section_of_the_changelog():
    done = subprocess.run([sys.executable, RELEASE, f"v{PROJECT['version']}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "### " in done.stdout
    assert len(done.stdout.splitlines()) < 60, "a summary; how it came to be has a section of its own"
    assert done.stdout.strip() in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_a_tag_of_another_version_is_refused():
    done = subprocess.run([sys.executable, RELEASE, "v9.9.9"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.strip() == f"the tag v9.9.9 is not v{PROJECT['version']}"


def test_only_the_job_that_publishes_may_sign_and_it_waits_for_the_trials():
    jobs = WORKFLOW["jobs"]
    assert WORKFLOW["permissions"] == {}
    assert [name for name, job in jobs.items() if "id-token" in job["permissions"]] == ["publish"]
    assert (jobs["try"]["needs"], jobs["publish"]["needs"]) == ("build", "try")
    assert "secrets." not in (ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8")


@pytest.mark.parametrize("path", [".github/workflows/release.yml", "Dockerfile", ".ci/run", "Makefile"])
def test_scripts_and_locks_that_are_named_exist(path):
    for name in re.findall(r"\b(?:tools/\w+\.py|requirements[\w-]*\.lock)", (ROOT / path).read_text("utf-8")):
        assert (ROOT / name).is_file(), name


def test_the_container_runs_a_study_as_a_plain_user():
    lines = (ROOT / "Dockerfile").read_text("utf-8").splitlines()
    command = json.loads(lines[-1].removeprefix("CMD "))
    assert command[:2] == ["fedscape", "study"]
    assert "USER 1000" in lines


def test_the_citation_says_what_a_citation_needs():
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(about)
    assert (about["version"], about["license"]) == (PROJECT["version"], PROJECT["license"])
    assert about["abstract"].rstrip(".") == PROJECT["description"]


@pytest.mark.parametrize("form", sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem)
def test_forms_of_issues_are_complete(form):
    about = yaml.safe_load(form.read_text("utf-8"))
    if form.stem != "config":
        assert {"name", "description", "body"} <= set(about)
        assert all({"type", "id", "attributes"} <= set(part) for part in about["body"])


def test_versions_of_the_site_stand_beside_each_other(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    publish = runpy.run_path(str(ROOT / "tools" / "versioned.py"))["publish"]
    for name, text in (("0.9.0", "old"), ("0.10.0", "new"), ("0.9.0", "mended")):
        built = tmp_path / f"built-{text}"
        built.mkdir()
        (built / "index.html").write_text(text)
        publish(built, tmp_path / "public", name)
    assert [v["version"] for v in json.loads((tmp_path / "public" / "versions.json").read_text())] == [
        "0.10.0",
        "0.9.0",
    ]
    assert "url=0.10.0/index.html" in (tmp_path / "public" / "index.html").read_text()
    assert (tmp_path / "public" / "0.9.0" / "index.html").read_text() == "mended"
