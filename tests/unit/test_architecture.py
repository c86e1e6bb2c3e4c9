"""docs/architecture.md: the picture is that of the imports, its routes are short and lead through names that exist."""

import re
import subprocess
import sys

import pytest

from benchmarks.architecture_picture import PAGE, ROOMS, arrows, floors, needed
from benchmarks.refresh_readme import REPOSITORY

ROUTES = dict(re.findall(r"^### (.+?)\n(.*?)(?=^### |\Z)", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL))
ROOMS_BY_NAME = {room.rpartition("/")[2] for room in ROOMS}


def test_the_picture_is_that_of_the_imports() -> None:
    """In a process of its own: the picture's bytes depend on what else was drawn in a process."""
    command = [sys.executable, str(REPOSITORY / "benchmarks" / "architecture_picture.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, f"make outputs: {done.stdout}{done.stderr}"


def test_no_folder_imports_against_the_reading_order() -> None:
    order = list(ROOMS)
    assert not [
        (room, other) for room, found in arrows().items() for other in found if order.index(other) > order.index(room)
    ]


def test_only_arrows_that_a_longer_way_implies_are_left_out() -> None:
    rooms = list(ROOMS)
    found = {room: set(rooms[:number]) for number, room in enumerate(rooms)}
    assert needed(found) == {room: {rooms[n - 1]} if n else set() for n, room in enumerate(rooms)}
    assert floors(found) == [[room] for room in rooms]


def test_there_are_five_routes() -> None:
    assert len(ROUTES) == 5


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_visits_at_most_six_rooms_once(route: str) -> None:
    visited = re.findall(r"^\| (\w+) \| \[", ROUTES[route], re.MULTILINE)
    assert 2 < len(visited) <= 6
    assert len(set(visited)) == len(visited) and set(visited) <= ROOMS_BY_NAME


@pytest.mark.parametrize("route", ROUTES)
def test_a_route_leads_through_names_that_exist(route: str) -> None:
    stops = re.findall(r"\]\((\S+)\): `(\w+)`", ROUTES[route])
    assert stops
    for path, name in stops:
        text = (PAGE.parent / path).read_text(encoding="utf-8")
        assert re.search(rf"^(def|class) {name}\b|^{name} = ", text, re.MULTILINE), f"{path}: {name}"
