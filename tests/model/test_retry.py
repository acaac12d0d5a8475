"""Waiting times between attempts (case S32)."""

from __future__ import annotations

import pytest

from refold.errors import BadModelStream, ContextWindowExceeded, ModelRefused, ModelUnavailable
from refold.model.retry import JITTER, LONGEST_WAIT, backoff, is_worth_retrying, wait_before_retry


def test_backoff_doubles_from_a_fifth_of_a_second():
    assert [backoff(attempt) for attempt in range(1, 6)] == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2])


@pytest.mark.parametrize("jitter", JITTER)
def test_jitter_moves_a_wait_by_a_tenth_at_most(jitter: float):
    assert backoff(3, jitter) == pytest.approx(0.8, rel=0.1001)


def test_backoff_ends_at_the_longest_wait_for_any_number_of_attempts():
    assert backoff(100) == LONGEST_WAIT
    assert backoff(10_000) == LONGEST_WAIT


def test_a_wait_that_the_provider_asked_for_is_taken_exactly():
    assert wait_before_retry(ModelUnavailable("slow down", retry_after=17.0), 1, 1.1) == 17.0
    assert wait_before_retry(ModelUnavailable("go on", retry_after=0.0), 4, 1.1) == 0.0


def test_without_an_asked_wait_the_ordinary_backoff_is_used():
    assert wait_before_retry(BadModelStream("gone"), 2, 0.9) == pytest.approx(0.36)


def test_longer_waits_than_the_longest_are_not_worth_it():
    patient = ModelUnavailable("wait", retry_after=LONGEST_WAIT)
    impatient = ModelUnavailable("wait", retry_after=LONGEST_WAIT + 0.001)
    assert is_worth_retrying(patient)
    assert not is_worth_retrying(impatient)
    assert is_worth_retrying(impatient, longest=1000)
    assert wait_before_retry(impatient, 1) == impatient.retry_after


def test_only_errors_that_may_pass_are_worth_retrying():
    assert is_worth_retrying(ModelUnavailable("busy"))
    assert is_worth_retrying(BadModelStream("gone"))
    assert not is_worth_retrying(ModelUnavailable("quota", retryable=False))
    assert not is_worth_retrying(ModelRefused("no"))
    assert not is_worth_retrying(ContextWindowExceeded("too long"))
