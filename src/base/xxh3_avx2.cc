// See xxh3_kernel.inc.
#define MC_XXH3_KERNEL kXxh3Avx2
#define MC_XXH3_NAME "avx2"
#define MC_XXH3_STRIPE Stripe

#include <immintrin.h>

namespace {

// Eight lanes of 64 bits.
struct Stripe {
  __m256i half[2];
};

Stripe Load(const void* from) {
  const auto* const halves = static_cast<const __m256i_u*>(from);
  return {{_mm256_loadu_si256(halves), _mm256_loadu_si256(halves + 1)}};
}
void Store(void* to, Stripe stripe) {
  auto* const halves = static_cast<__m256i_u*>(to);
  _mm256_storeu_si256(halves, stripe.half[0]);
  _mm256_storeu_si256(halves + 1, stripe.half[1]);
}

// Per lane: the product of the halves of input ^ key, and the input of the lane beside it.
__m256i Add(__m256i sum, __m256i input, __m256i key) {
  const __m256i mixed = _mm256_xor_si256(input, key);
  const __m256i product = _mm256_mul_epu32(mixed, _mm256_srli_epi64(mixed, 32));
  const __m256i swapped = _mm256_shuffle_epi32(input, _MM_SHUFFLE(1, 0, 3, 2));
  return _mm256_add_epi64(product, _mm256_add_epi64(sum, swapped));
}
Stripe Add(Stripe sum, Stripe input, Stripe key) {
  return {
      {Add(sum.half[0], input.half[0], key.half[0]), Add(sum.half[1], input.half[1], key.half[1])}};
}

// Per lane: (sum ^ (sum >> 47) ^ key) * prime, of which the product keeps the lower 64 bits.
__m256i Scramble(__m256i sum, __m256i key) {
  const __m256i prime = _mm256_set1_epi32(static_cast<int>(0x9E3779B1U));
  const __m256i folded = _mm256_xor_si256(sum, _mm256_srli_epi64(sum, 47));
  const __m256i mixed = _mm256_xor_si256(folded, key);
  const __m256i low = _mm256_mul_epu32(mixed, prime);
  const __m256i high = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
  return _mm256_add_epi64(low, _mm256_slli_epi64(high, 32));
}
Stripe Scramble(Stripe sum, Stripe key) {
  return {{Scramble(sum.half[0], key.half[0]), Scramble(sum.half[1], key.half[1])}};
}

}  // namespace

#include "base/xxh3_kernel.inc"
