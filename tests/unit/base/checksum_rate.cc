// Prints the rates of the checksum, of a plain copy and of both in one pass. Run by hand.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/checksum.h"
#include "base/xxh3_kernel.h"
#include "runtime/real_runtime.h"

namespace mooncake::base {
namespace {

constexpr int kRounds = 5;
constexpr uint64_t kBytesPerRound = 1ULL << 30;

// The best of some rounds, in GiB/s, of a function that handles `size` bytes at a time.
template <typename Function>
double BestRate(size_t size, const Function& function) {
  runtime::RealRuntime runtime;
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t start_ns = runtime.NowNs();
    for (uint64_t done = 0; done < kBytesPerRound; done += size) function(done);
    const double took_ns = static_cast<double>(runtime.NowNs() - start_ns);
    best = std::max(best, kBytesPerRound / took_ns * 1e9 / (1 << 30));
  }
  return best;
}

void Report(size_t size, size_t working_set) {
  std::vector<std::byte> source(working_set, std::byte{1});
  std::vector<std::byte> target(working_set, std::byte{2});
  volatile uint64_t sink = 0;
  const auto from = [&](uint64_t at) { return ConstBytes(&source[at % working_set], size); };
  const auto to = [&](uint64_t at) { return MutableBytes(&target[at % working_set], size); };
  const double hash = BestRate(size, [&](uint64_t at) { sink = sink + Checksum(from(at)); });
  const double copy =
      BestRate(size, [&](uint64_t at) { std::memcpy(to(at).data(), from(at).data(), size); });
  const double both =
      BestRate(size, [&](uint64_t at) { sink = sink + CopyWithChecksum(to(at), from(at)); });
  std::printf("%8zu bytes, working set %6zu KiB: checksum %6.2f copy %6.2f both %6.2f GiB/s\n",
              size, working_set >> 10, hash, copy, both);
}

}  // namespace
}  // namespace mooncake::base

int main() {
  std::printf("kernel %s\n", mooncake::base::BestXxh3Kernel().name);
  for (size_t size : {size_t{64} << 10, size_t{1} << 20}) {
    mooncake::base::Report(size, size);
    mooncake::base::Report(size, size_t{256} << 20);
  }
}
