from hypothesis import given
from hypothesis import strategies as st

from marsrl_verl.core.seeding import derive_seed


def test_the_same_names_give_the_same_seed_in_every_process():
    """Runs go on after updates of this package: the number stays."""
    assert derive_seed(3, "p", 2) == 9762912309810229408


def test_boundaries_and_types_of_names_count():
    seeds = {
        derive_seed(1, "ab", "c"),
        derive_seed(1, "a", "bc"),
        derive_seed(1, "abc"),
        derive_seed(1, "1"),
        derive_seed(1, 1),
        derive_seed(2, 1),
        derive_seed(11),
    }
    assert len(seeds) == 7


@given(st.integers(), st.lists(st.text() | st.integers(), max_size=3))
def test_a_seed_is_a_64_bit_number_for_any_names(seed, names):
    assert 0 <= derive_seed(seed, *names) < 2**64
