"""Methods by their names, and what can be chosen of them."""

import re

import pytest

from gpssm.errors import InvalidInput
from gpssm.methods import registry

EVERY = [*registry.METHODS, *registry.ONLINE]


def build(name: str, **choices: object) -> object:
    return (registry.build_online if name in registry.ONLINE else registry.build)(name, **choices)


@pytest.mark.parametrize("name", EVERY)
def test_a_choice_that_a_method_has_reaches_it_and_another_is_refused(name: str) -> None:
    needed = registry.applicable(name, state_dim=3)
    for choice, value in registry.applicable(name, state_dim=3, num_inducing=7, num_members=9, order=2).items():
        assert getattr(build(name, **needed | {choice: value}), choice) == value
    with pytest.raises(InvalidInput, match=f"^nonsense: {re.escape(name)} has no such choice; expected none but "):
        build(name, **needed, nonsense=1)


@pytest.mark.parametrize(
    ("name", "choices"),
    [("ARX", {"state_dim": 4}), ("ARX(4)", {"order": 2}), ("DKF", {"num_inducing": 20}), ("LastValue", {"order": 1})],
)
def test_what_is_not_a_choice_or_is_settled_is_refused(name: str, choices: dict[str, int]) -> None:
    (choice,) = choices
    assert registry.applicable(name, **choices) == {} and choice not in registry.choices(name)
    with pytest.raises(InvalidInput, match=f"^{choice}: "):
        registry.build(name.lower(), **choices)
