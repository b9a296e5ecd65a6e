"""No password leaves in a text, whatever stands around it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rrq.runtime.masking import is_secret_name, mask_secrets, mask_url


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("", ""),
        ("nothing to hide", "nothing to hide"),
        ("redis://:secret@host:6379/0", "redis://***@host:6379/0"),
        ("redis://user:secret@host", "redis://***@host"),
        ("https://secret@host/path", "https://***@host/path"),
        ("see redis://u:s@h1 and rediss://u:s@h2!", "see redis://***@h1 and rediss://***@h2!"),
        ("redis://u:se@cr/et@host/0", "redis://***@host/0"),
        ("redis://:se/cret@host", "redis://***@host"),
        ("('redis://u:se'cr\"et@h',)", "('redis://***@h',)"),
        ('["https://a.com/x","redis://u:s@h2"]', '["https://a.com/x","redis://***@h2"]'),
        ('["redis://h1:1/0","redis://u:s@h2"]', '["redis://h1:1/0","redis://***@h2"]'),
        ("redis://u:s@h1,redis://u:s@h2", "redis://***@h2"),
        ("redis://host:6379/0 is up, says a@b", "redis://host:6379/0 is up, says a@b"),
        ("git+https://host/repo@tag", "git+https://host/repo@tag"),
        ("https://host:8080/@somebody", "https://host:8080/@somebody"),
        ("redis://[::1]:6379/0?x=a@b", "redis://[::1]:6379/0?x=a@b"),
        (
            "redis+sentinel://u:s@h1:1,h2:2/main/0?sentinel_password=s&x=1",
            "redis+sentinel://***@h1:1,h2:2/main/0?sentinel_password=***&x=1",
        ),
        ("redis://h?password=a,b)c&db=1", "redis://h?password=***&db=1"),
        ("Pool(host=h,password=s3,cret,db=0)", "Pool(host=h,password=***"),
        ("PASSWORD=secret other", "PASSWORD=*** other"),
        ("passwd=secret", "passwd=***"),
        ("{'password': 'se\\'cret', 'db': 0}", "{'password': '***', 'db': 0}"),
        ('{"redis_password": "secret"}', "{\"redis_password\": '***'}"),
        ("{'password': None}", "{'password': '***'}"),
        ("invalid username-password pair or user is disabled.",) * 2,
        ("password=", "password="),
        ("://@", "://***@"),
    ],
)
def test_passwords_are_masked_in_any_text(text: str, masked: str) -> None:
    assert mask_secrets(text) == masked


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("redis://:se cret@host/0", "redis://***@host/0"),
        ("redis://host?password=secret", "redis://host?password=***"),
        ("no url", "no url"),
        ("redis://user:secret", "redis://***"),
        ("redis://user:secret/0", "redis://***"),
        ("redis://[::1]/0", "redis://[::1]/0"),
        ("redis://[::1]:6379/0", "redis://[::1]:6379/0"),
        ("redis+sentinel://one:1,two:2/service/0", "redis+sentinel://one:1,two:2/service/0"),
    ],
)
def test_a_text_that_is_known_to_be_a_url_may_hold_spaces(url: str, masked: str) -> None:
    assert mask_url(url) == masked


# Of letters that nothing else in the texts is made of, so that finding one means a leak.
@given(st.text(alphabet="§¤/@:?#&%'\"", min_size=1).map(lambda text: f"¶{text}¶"), st.text(), st.text())
def test_no_password_survives_in_a_url(password: str, before: str, after: str) -> None:
    before, after = before.replace("¶", ""), after.replace("¶", "")
    assert "¶" not in mask_secrets(f"{before} redis://user:{password}@host {after}")
    assert "¶" not in mask_url(f"redis://:{password}@host/0")


@pytest.mark.parametrize(
    "text", ["a://" * 100_000, "://@" * 100_000, "password" * 50_000, "x" * 400_000 + "@"]
)
def test_long_texts_take_no_long_time(text: str) -> None:
    # Of the processor, which others may have in between.
    began = time.thread_time()
    mask_secrets(text + "://password=")
    assert time.thread_time() - began < 2


@pytest.mark.parametrize(
    ("name", "expected"), [("password", True), ("redis_Passwd", True), ("job_id", False), ("token", False)]
)
def test_fields_that_hold_passwords_are_known_by_name(name: str, expected: bool) -> None:
    assert is_secret_name(name) is expected
