#include "base/checksum.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/xxh3_kernel.h"

namespace mooncake::base {
namespace {

std::string Noise(size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(Mix64(i));
  return text;
}

// Around every limit of the algorithm and of the chunked copy.
const std::vector<size_t> kSizes = {0,     1,     3,     4,     8,     16,    17,     128,  129,
                                    240,   241,   256,   257,   1023,  1024,  1025,   4096, 16383,
                                    16384, 16385, 32768, 65535, 65536, 70001, 1 << 20};

TEST(Checksum, IsXxh3OfTheBytes) {
  EXPECT_EQ(Checksum(BytesOf("")), 0x2d06800538d394c2ULL);
  for (size_t size : kSizes) {
    const std::string text = Noise(size);
    EXPECT_EQ(Checksum(BytesOf(text)), Hash64(text)) << size;
  }
}

TEST(Checksum, EveryKernelThatRunsHereAgrees) {
  const std::string text = Noise(70001);
  EXPECT_EQ(Xxh3KernelAt(0), &BestXxh3Kernel());
  for (size_t rank = 0; const Xxh3Kernel* kernel = Xxh3KernelAt(rank); ++rank) {
    for (size_t size : {0, 100, 241, 5000, 70001}) {
      EXPECT_EQ(kernel->hash(text.data(), size), kXxh3Plain.hash(text.data(), size))
          << kernel->name;
    }
  }
}

TEST(Checksum, OfPiecesIsThatOfTheirConcatenation) {
  for (size_t size : kSizes) {
    const std::string text = Noise(size);
    const ConstBytes all = BytesOf(text);
    const size_t cut = size / 3;
    const std::vector<ConstBytes> pieces = {all.first(cut), {}, all.subspan(cut)};
    EXPECT_EQ(Checksum(pieces), Checksum(all)) << size;
    EXPECT_EQ(Checksum(std::vector<ConstBytes>{all}), Checksum(all)) << size;
  }
  EXPECT_EQ(Checksum(std::span<const ConstBytes>()), Checksum(ConstBytes()));
}

TEST(Checksum, ChangesWithAnyBit) {
  std::string text = Noise(1000);
  const uint64_t before = Checksum(BytesOf(text));
  text[517] ^= 1;
  EXPECT_NE(Checksum(BytesOf(text)), before);
}

TEST(CopyWithChecksum, CopiesAndReturnsTheChecksumOfTheSource) {
  for (size_t size : kSizes) {
    const std::string source = Noise(size);
    std::string target(size + 1, '#');
    const uint64_t sum =
        CopyWithChecksum(MutableBytesAt(target.data(), target.size()), BytesOf(source));
    EXPECT_EQ(sum, Checksum(BytesOf(source))) << size;
    EXPECT_EQ(target, source + '#') << size;
  }
}

TEST(CopyWithChecksum, IsTheSameInEveryKernelThatRunsHere) {
  for (size_t rank = 0; const Xxh3Kernel* kernel = Xxh3KernelAt(rank); ++rank) {
    for (size_t size = 1; size < 5000; size += size < 2200 ? 1 : 61) {
      const std::string source = Noise(size + 1).substr(1);  // Nothing is aligned.
      std::string target(size + 2, '#');
      EXPECT_EQ(kernel->copy(&target[1], source.data(), size), Checksum(BytesOf(source)))
          << kernel->name << ' ' << size;
      EXPECT_EQ(target, '#' + source + '#') << kernel->name << ' ' << size;
    }
  }
}

// Of bytes that change under the copy, what is hashed is what is written. Another process changes
// them, as it does where memory is shared.
TEST(CopyWithChecksum, VouchesForWhatItWrites) {
  constexpr size_t kSize = 100'000;
  void* const shared =
      mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    auto* const bytes = static_cast<volatile char*>(shared);
    for (size_t i = 0;; i = (i + 7919) % kSize) bytes[i] = static_cast<char>(bytes[i] + 1);
  }
  std::string target(kSize, '\0');
  const ConstBytes source = BytesAt(shared, kSize);
  for (int round = 0; round < 2000; ++round) {
    const uint64_t sum = CopyWithChecksum(MutableBytesAt(target.data(), kSize), source);
    EXPECT_EQ(sum, Checksum(BytesOf(target))) << round;
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  munmap(shared, kSize);
}

TEST(ChecksumStream, MatchesTheOneShotChecksumForAnyPieceSize) {
  const std::string text = Noise(9001);
  for (size_t step : {1, 7, 64, 255, 256, 257, 1024, 4000, 9001}) {
    ChecksumStream stream;
    for (size_t at = 0; at < text.size(); at += step) {
      stream.Update(BytesOf(std::string_view(text).substr(at, step)));
    }
    EXPECT_EQ(stream.Digest(), Checksum(BytesOf(text))) << step;
  }
}

TEST(ChecksumStream, ACopyGoesOnIndependently) {
  ChecksumStream stream;
  stream.Update(BytesOf("ab"));
  ChecksumStream copy = stream;
  ChecksumStream assigned;
  assigned = stream;
  stream.Update(BytesOf("cd"));
  copy.Update(BytesOf("xy"));
  EXPECT_EQ(stream.Digest(), Checksum(BytesOf("abcd")));
  EXPECT_EQ(copy.Digest(), Checksum(BytesOf("abxy")));
  EXPECT_EQ(assigned.Digest(), Checksum(BytesOf("ab")));
}

TEST(ChecksumStream, ResetForgetsWhatItSaw) {
  ChecksumStream stream;
  stream.Update(BytesOf("before"));
  stream.Reset();
  stream.Update(BytesOf("after"));
  EXPECT_EQ(stream.Digest(), Checksum(BytesOf("after")));
}

}  // namespace
}  // namespace mooncake::base
