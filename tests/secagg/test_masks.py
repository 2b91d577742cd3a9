"""Keys that are bound to everything they should be, and masks that are the cipher's keystream to the byte."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from parties import small_terms

from fedavg.secagg import masks
from fedavg.secagg.masks import agree, apply_masks, pairwise_key, private_key, public_key, sealing_key, self_key

ONE, OTHER = bytes(range(32)), bytes(range(1, 33))


def test_both_ends_of_a_pair_derive_the_same_keys():
    one, other = private_key(ONE), private_key(OTHER)
    agreed = agree(one, public_key(other))
    assert agreed == agree(other, public_key(one))
    assert pairwise_key(agreed, bytes(32), 1, 2) == pairwise_key(agreed, bytes(32), 2, 1)


def test_a_key_is_bound_to_session_round_model_pair_direction_and_purpose():
    base = small_terms(4)
    changes = [{}, {"session": bytes(16)}, {"round": 4}, {"model": bytes(32)}, {"threshold": 4}]
    keys = [pairwise_key(ONE, small_terms(4, **change).digest, 1, 2) for change in changes]
    keys += [pairwise_key(ONE, base.digest, 1, 3), sealing_key(ONE, base.digest, 1, 2)]
    keys += [sealing_key(ONE, base.digest, 2, 1), self_key(ONE, base.digest, 1), self_key(ONE, base.digest, 2)]
    keys += [masks.commitment(ONE, base.digest, 1), masks.sharing_key(ONE, base.digest, b"seed")]
    assert len({*keys}) == len(keys) == 12
    assert all(len(key) == 32 for key in keys)


def test_a_degenerate_public_key_is_refused():
    with pytest.raises(ValueError, match="shared key"):
        agree(private_key(ONE), bytes(32))


@pytest.mark.parametrize("dtype", ["<u2", "<u4", "<u8"])
@pytest.mark.parametrize("length", [1, 7, 1 << 15, (1 << 16) + 3])
def test_a_mask_is_the_keystream_of_aes_256_in_counter_mode(dtype, length):
    ring = np.zeros(length, dtype)
    apply_masks(ring, [ONE], [])
    blocks = -(-ring.nbytes // 16)
    counters = b"".join(counter.to_bytes(16, "big") for counter in range(blocks))
    keystream = Cipher(algorithms.AES(ONE), modes.ECB()).encryptor().update(counters)
    assert ring.tobytes() == keystream[: ring.nbytes]


def test_masks_add_up_in_the_ring_and_come_off_again(monkeypatch):
    start = np.arange(1000, dtype="<u4")
    keys = [bytes([n]) * 32 for n in range(7)]
    single = start.copy()
    for key in keys[:4]:
        apply_masks(single, [key], [])
    for key in keys[4:]:
        apply_masks(single, [], [key])
    together = start.copy()
    monkeypatch.setattr(masks, "_BATCH", 3)  # several passes give the same
    apply_masks(together, keys[:4], keys[4:])
    assert np.array_equal(single, together)
    assert not np.array_equal(together, start)
    apply_masks(together, keys[4:], keys[:4])
    assert np.array_equal(together, start)


def test_the_two_of_a_pair_mask_with_opposite_signs():
    assert masks.sign(3, 8) == -masks.sign(8, 3) == 1
