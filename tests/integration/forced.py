"""forced - makes the tiny model say what a test wants.

Ids are forced by logit bias: REPEAT 10 lets an id that has come once fall behind the next one of the
list, so any sequence of different ids can be dictated.
"""
import struct

FIRST_BYTE = 3  # of the tiny model: three control tokens, then the 256 bytes
ENDS = (0, 2)  # its end-of-text ids: by spelling, and by the metadata


def byte_ids(data):
    return [FIRST_BYTE + b for b in data]


def ids(*values):
    """As GEN ... IDS takes them."""
    return struct.pack(f"<{len(values)}i", *values)


def forced(sequence):
    """Options that make the model say these ids, all different, one after the other."""
    assert len(set(sequence)) == len(sequence) <= 30, sequence
    options = ["TEMP", 0, "REPEAT", 10]
    for place, token in enumerate(sequence):  # from 1000 down to 300; those that have come: below 101
        options += ["BIAS", token, 1000 - place * 700 // len(sequence)]
    return options


def end_of(c, key):
    """The fields of the key's last entry, as text."""
    return c.fields(c.call("XREVRANGE", key, "+", "-", "COUNT", 1)[0])


def number(c, name):
    """A number of INFO."""
    return int(c.info()[name])
