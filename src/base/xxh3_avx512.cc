// See xxh3_kernel.inc.
#define MC_XXH3_KERNEL kXxh3Avx512
#define MC_XXH3_NAME "avx512"
#define MC_XXH3_STRIPE Stripe

#include <immintrin.h>

namespace {

// Eight lanes of 64 bits.
struct Stripe {
  __m512i all;
};

Stripe Load(const void* from) { return {_mm512_loadu_si512(from)}; }
void Store(void* to, Stripe stripe) { _mm512_storeu_si512(to, stripe.all); }

// Per lane: the product of the halves of input ^ key, and the input of the lane beside it.
Stripe Add(Stripe sum, Stripe input, Stripe key) {
  const __m512i mixed = _mm512_xor_si512(input.all, key.all);
  const __m512i product = _mm512_mul_epu32(mixed, _mm512_srli_epi64(mixed, 32));
  const __m512i swapped = _mm512_shuffle_epi32(input.all, _MM_PERM_BADC);
  return {_mm512_add_epi64(product, _mm512_add_epi64(sum.all, swapped))};
}

// Per lane: (sum ^ (sum >> 47) ^ key) * prime, of which the product keeps the lower 64 bits.
Stripe Scramble(Stripe sum, Stripe key) {
  const __m512i prime = _mm512_set1_epi32(static_cast<int>(0x9E3779B1U));
  const __m512i folded = _mm512_xor_si512(sum.all, _mm512_srli_epi64(sum.all, 47));
  const __m512i mixed = _mm512_xor_si512(folded, key.all);
  const __m512i low = _mm512_mul_epu32(mixed, prime);
  const __m512i high = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
  return {_mm512_add_epi64(low, _mm512_slli_epi64(high, 32))};
}

}  // namespace

#include "base/xxh3_kernel.inc"
