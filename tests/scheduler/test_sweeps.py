"""Sweeps: lists of values become jobs, each with its own in its environment, in form, YAML, API and under a template's bounds."""

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.times import now
from scheduler.jobs.fields import description_of, values_of
from scheduler.jobs.reading import read_description
from scheduler.jobs.schema import Array
from scheduler.models import Job
from scheduler.services.jobs.submission import submission_create
from tests import builders

PATH = "acme/research/nlp"


def own(**said):
    array = Array.model_validate(said)
    return [array.own(place) for place in range(array.count)]


def test_a_grid_is_every_combination_and_the_last_variable_changes_first():
    assert own(grid={"LR": [0.1, 0.01], "SEED": [1, 2]}) == [
        {"LR": "0.1", "SEED": "1"},
        {"LR": "0.1", "SEED": "2"},
        {"LR": "0.01", "SEED": "1"},
        {"LR": "0.01", "SEED": "2"},
    ]
    assert own(grid={"A": ["x", True, "1e-4"]}) == [{"A": "x"}, {"A": "true"}, {"A": "1e-4"}]


def test_zipped_the_first_values_go_together():
    assert own(grid={"LR": [1, 2], "NAME": ["a", "b"]}, combine="zip") == [{"LR": "1", "NAME": "a"}, {"LR": "2", "NAME": "b"}]


@given(st.dictionaries(st.sampled_from("ABCD"), st.lists(st.text("xy", min_size=1), min_size=1, max_size=4, unique=True), min_size=1))
def test_no_combination_is_left_out_or_comes_twice(grid):
    found = own(grid=grid)

    assert len({tuple(one.items()) for one in found}) == len(found) == Array.model_validate({"grid": grid}).count
    assert all(list(one) == list(grid) and all(value in grid[name] for name, value in one.items()) for one in found)


@pytest.mark.parametrize(
    ("array", "path", "said"),
    [
        ({"grid": {"A": list(range(200)), "B": list(range(100))}}, "array.grid", "It comes to 20,000 jobs; at most 10,000."),
        ({"grid": {"A": [1, 2], "B": [1]}, "combine": "zip"}, "array.grid", "To go together the lists must be equally long; they have 2, 1."),
        ({"grid": {"A": []}}, "array.grid.A", "At least 1."),
        ({"grid": {}}, "array.grid", "At least 1."),
        ({"grid": {"1A": [1]}}, "array.grid.1A", "A variable's name has letters, digits and _, and begins with no digit."),
        ({"grid": {"A": [{}]}}, "array.grid.A[0]", "A text is wanted; in YAML, quote it."),
        ({"grid": {"A": [1]}, "size": 3}, "array.grid", "State one of size, values and grid."),
        ({}, "array.size", "State one of size, values and grid."),
    ],
)
def test_what_is_wrong_with_a_sweep_is_told_at_its_place(array, path, said):
    read = read_description({"name": "a", "quota": PATH, "gpus": 1, "array": array})

    assert {key.removesuffix(".[key]"): messages for key, messages in read.faults.items()} == {path: [said]}


def test_the_form_and_the_yaml_say_the_same_sweep():
    array = {"grid": {"LR": ["0.1", "a b"], "SEED": ["1", "2"]}, "combine": "zip"}

    values = values_of({"array": array})
    assert values["array.grid"] == "LR=0.1 'a b'\nSEED=1 2"
    assert description_of(values) == {"array": array}
    assert description_of({"array.grid": "LR\n"}) == {"array": {"grid": "LR\n".strip()}}, "what does not read so is left for the schema"


@pytest.mark.django_db
class TestSubmitted:
    @pytest.fixture(autouse=True)
    def fleet(self, personas):
        builders.node("n1", gpus=8)
        self.personas = personas

    def submit(self, **said):
        access = self.personas.access("submitter")
        return submission_create(access=access, description={"name": "sweep", "quota": PATH, "gpus": 1, **said}, now=now(), actor=access.actor)

    def test_each_job_gets_its_values_and_its_page_shows_them(self):
        jobs = self.submit(array={"grid": {"LR": [0.1, 0.01], "SEED": [1, 2]}}, launch={"command": ["train"], "env": {"KEEP": "1", "LR": "9"}})

        assert [job.parameters for job in jobs][2] == {"LR": "0.01", "SEED": "1"}
        assert jobs[2].launch["env"] == {"KEEP": "1", "LR": "0.01", "SEED": "1", "GPUFLEET_ARRAY_INDEX": "2"}
        page = f"/jobs/{jobs[2].public_id}/"
        assert "<code>LR=0.01</code>" in self.personas.client("submitter").get(page).content.decode()
        assert "LR=0.01" not in self.personas.client("viewer").get(page).content.decode(), "what a job is started with is its people's"
        api = f"/api/v1/jobs/{jobs[2].public_id}"
        assert self.personas.client("submitter").get(api).json()["parameters"] == {"LR": "0.01", "SEED": "1"}
        assert self.personas.client("viewer").get(api).json()["parameters"] is None

    def test_who_sweeps_takes_the_place_of_a_templates_size_within_its_bound(self):
        jobs = self.submit(template="sweep", array={"grid": {"A": [1, 2, 3]}})
        assert [job.parameters["A"] for job in jobs] == ["1", "2", "3"]

        with pytest.raises(ValidationError) as refused:
            self.submit(template="sweep", array={"grid": {"A": list(range(30)), "B": list(range(20))}})
        assert refused.value.message_dict == {"array.grid": ["At most 500, by the template sweep."]}
        assert Job.objects.count() == 3

    def test_a_look_says_how_many_and_how_much_in_all(self):
        said = f"name: a\nquota: {PATH}\ngpus: 2\nestimate_s: 3600\narray: {{grid: {{A: [1, 2, 3], B: [x, y]}}}}\n"
        client = self.personas.client("submitter")
        for _ in range(50):
            told = client.post("/jobs/new/look", {"yaml": said, "_from": "yaml"}).json()
            if "data-again" not in told["fit"]:
                break
        assert "<strong>6 jobs</strong> of 2 GPUs each: 12 GPUs if all run at once" in told["fit"]
