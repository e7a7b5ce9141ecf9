"""A seeded permutation of many indices that is computed, not kept: memory does not grow with their number. Pure.

A balanced Feistel network of four rounds over the next power of four, walked on until it lands inside (Black and
Rogaway 2002, "Ciphers with Arbitrary Finite Domains"). It takes four walks on average at most.
"""

import xxhash

ROUNDS = 4


class Permutation:
    """`permutation[place]` for `0 <= place < count`: each index once.

    Example:
        >>> permutation = Permutation(5, seed=0, data_pass=0)
        >>> sorted(permutation[place] for place in range(5))
        [0, 1, 2, 3, 4]
    """

    def __init__(self, count: int, seed: int, data_pass: int) -> None:
        self._count = count
        self._half_bits = max(1, ((count - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half_bits) - 1
        self._keys = [xxhash.xxh3_64_intdigest(f"{seed}/{data_pass}/{number}".encode()) for number in range(ROUNDS)]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> int:
        if not 0 <= place < self._count:
            raise IndexError(f"there is no place {place} of {self._count}")
        while True:
            place = self._encrypt(place)
            if place < self._count:
                return place

    def _encrypt(self, place: int) -> int:
        left, right = place >> self._half_bits, place & self._mask
        for key in self._keys:
            mixed = xxhash.xxh3_64_intdigest(right.to_bytes(8, "little"), seed=key)
            left, right = right, left ^ (mixed & self._mask)
        return (left << self._half_bits) | right
