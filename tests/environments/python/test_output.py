import os

from bapo_lightning.environments.python.output import Output


def test_a_short_text_is_kept_whole():
    output = Output(10)
    for part in (b"abc", b"", b"defghij"):
        output.add(part)
    assert output.text() == "abcdefghij" and output.kept == b"abcdefghij"


def test_of_a_long_text_both_ends_are_kept():
    output = Output(5)
    for _ in range(1000):
        output.add(b"0123456789" * 100)
    assert output.text() == "012\n[999995 bytes left out]\n89" and len(output.kept) == 5


def test_a_character_that_is_cut_does_no_harm():
    output = Output(3)
    output.add("ääää".encode())
    assert output.text() == "ä\n[5 bytes left out]\n\N{REPLACEMENT CHARACTER}"


def test_a_pipe_is_read_to_its_end_without_waiting():
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    output = Output(10)
    assert output.read(reader)
    os.write(writer, b"text")
    os.close(writer)
    assert output.read(reader) and not output.read(reader)
    os.close(reader)
    assert output.text() == "text"
