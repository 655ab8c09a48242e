"""Does a policy in Python rule the engine's own mechanism, and do its mistakes reach the caller?"""

import pytest

import contigua
from contigua import AgeOptions, explore
from contigua.explore import Candidate, Kind, Policy, PolicyError, Request, Verdict

#: Short of memory, so that kinds run out and policies differ; 187,000 allocations.
SMALL = AgeOptions(memory="128M", hours=0.2, kernel=5, sample_seconds=60)


class Linux(Policy):
    """Linux's rules, all of which Python is asked for; it counts how often."""

    def __init__(self):
        self.asked = {"home": 0, "fallbacks": 0, "verdict": 0}

    def home(self, request):
        self.asked["home"] += 1
        return super().home(request)

    def fallbacks(self, home):
        self.asked["fallbacks"] += 1
        return super().fallbacks(home)

    def verdict(self, home, request, candidate):
        self.asked["verdict"] += 1
        assert candidate.kind is not home
        assert candidate.order >= request.order
        return super().verdict(home, request, candidate)


class Apart(Policy):
    """Illuminator's rules."""

    def verdict(self, home, request, candidate):
        if candidate.order >= explore.PAGEBLOCK_ORDER:
            return Verdict.CLAIM
        mixes = (home is Kind.MOVABLE) != (candidate.kind is Kind.MOVABLE)
        return Verdict.REFUSE if mixes else Verdict.BORROW


@pytest.fixture(scope="module")
def linux():
    return contigua.age("linux-thp", SMALL)


def test_linux_rules_in_python_give_the_samples_of_the_engine_s_own(linux):
    policy = Linux()
    server = explore.age(policy, SMALL)
    assert server.samples == linux.samples
    assert server.memory_map("frame") == linux.memory_map("frame")
    assert all(count > 0 for count in policy.asked.values()), policy.asked


def test_the_base_class_is_linux_without_a_call_for_each_request(linux):
    server = explore.age(Policy(), SMALL)
    assert server.samples == linux.samples
    assert server.design == "Policy"
    assert server.report["config"]["design"]["placement"] == {"explored": {"name": "Policy"}}


def test_a_python_placement_agrees_with_the_same_rules_in_rust(linux):
    samples = explore.age(Apart(), SMALL).samples
    assert samples != linux.samples
    assert samples == contigua.age("illuminator-thp", SMALL).samples


def test_movable_memory_at_home_elsewhere_is_where_the_policy_says():
    class Everything(Policy):
        def home(self, request):
            return Kind.UNMOVABLE

    final = explore.age(Everything(), SMALL).final
    assert final["events"]["blocks_claimed"] > 0


@pytest.mark.parametrize("method", ["home", "fallbacks", "verdict"])
def test_an_exception_ends_the_server_and_reaches_the_caller(method):
    def broken(*_):
        raise LookupError("no idea")

    policy = type("Broken", (Policy,), {method: broken})()
    with pytest.raises(LookupError, match="no idea"):
        explore.age(policy, SMALL)


@pytest.mark.parametrize(
    ("method", "answer", "message"),
    [
        ("home", 1, r"Wrong\.home returned 1, which is no contigua\.explore\.Kind"),
        ("fallbacks", None, r"fallbacks returned None, not a list"),
        ("fallbacks", [Kind.MOVABLE] * 2, r"fallbacks returned a kind twice"),
        ("verdict", None, r"verdict returned None, which is no contigua\.explore\.Verdict"),
    ],
)
def test_an_invalid_answer_of_a_policy_is_one_clear_error(method, answer, message):
    policy = type("Wrong", (Policy,), {method: lambda *_: answer})()
    with pytest.raises(PolicyError, match=message):
        explore.age(policy, SMALL)


def test_an_object_that_is_no_policy_is_refused():
    with pytest.raises(PolicyError, match="subclass"):
        explore.age("linux-thp", SMALL)


def test_progress_is_told_and_may_stop():
    told = []

    def stop(part):
        told.append(part)
        if part > 0.5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        explore.age(Policy(), SMALL, progress=stop)
    assert told == sorted(told)
    assert 0.5 < told[-1] < 0.6


def test_a_snapshot_can_be_looked_at_but_nothing_else_runs_on_it(tmp_path):
    server = explore.age(Apart(), SMALL)
    server.save(tmp_path / "apart.snapshot")
    seen = contigua.AgedServer.load(tmp_path / "apart.snapshot")
    assert seen.memory_map("frame") == server.memory_map("frame")
    age = contigua.Age.snapshot(tmp_path / "apart.snapshot")
    with pytest.raises(contigua.EngineError, match="placed by explored"):
        contigua.run(["/bin/true"], designs=["linux-thp"], options=contigua.RunOptions(age=age))


def test_no_design_file_can_name_an_explored_placement(tmp_path):
    file = tmp_path / "design.toml"
    file.write_text('description = ""\n[translation.base]\n[placement.explored]\nname = "x"\n')
    with pytest.raises(contigua.EngineError, match="explored"):
        contigua.age(str(file), SMALL)


def test_linux_rules_by_hand():
    request = Request(0, "slab", False, False, False)
    policy = Policy()
    half = Candidate(Kind.MOVABLE, 4, 200, 256, 56)
    assert policy.verdict(Kind.UNMOVABLE, request, half) is Verdict.CLAIM
    less = half._replace(free=199)
    assert policy.verdict(Kind.UNMOVABLE, request, less) is Verdict.BORROW
    small = Candidate(Kind.UNMOVABLE, 3, 500, 0, 12)
    movable = request._replace(use="anonymous")
    assert policy.verdict(Kind.MOVABLE, movable, small) is Verdict.BORROW_SMALLEST
    assert policy.verdict(Kind.MOVABLE, movable._replace(order=3), small) is Verdict.BORROW
