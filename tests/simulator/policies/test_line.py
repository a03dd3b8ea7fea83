"""A line answers as a list that is searched from its head would."""

from hypothesis import given
from hypothesis import strategies as st

from allmende.simulator.policies.line import Line


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 6)), max_size=150), st.integers(-1, 7))
def test_the_first_and_the_first_that_is_short_enough(steps: list[tuple[int, int]], limit: int) -> None:
    line, plain = Line(), dict[int, int]()
    for number, length in steps:
        if number in plain:
            line.take(number)
            del plain[number]
        else:
            line.put(number, length)
            plain[number] = length
        assert len(line) == len(plain)
        assert line.first() == min(plain, default=None)
        assert line.first(limit) == min((each for each, length in plain.items() if length <= limit), default=None)


def test_in_the_order_in_which_they_came_and_went() -> None:
    line = Line()
    for number in range(1_000):
        line.put(number, number % 7)
        if number >= 3:
            line.take(number - 3)
    assert (line.first(), line.first(0), len(line)) == (997, None, 3)
    line.put(5, 9)
    assert (line.first(), line.first(8)) == (5, 997)
