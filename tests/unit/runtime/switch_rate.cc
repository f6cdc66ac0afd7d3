// Prints how many times a second a simulation hands its baton on. Run by hand.
#include <cstdio>
#include <memory>
#include <vector>

#include "runtime/real_runtime.h"
#include "runtime/sim_runtime.h"

int main() {
  constexpr int kThreads = 10;
  constexpr int kSwitchesPerThread = 50'000;
  mooncake::runtime::RealRuntime real;
  mooncake::runtime::SimRuntime sim(1);
  const uint64_t start_ns = real.NowNs();
  sim.Run([&] {
    std::vector<std::unique_ptr<mooncake::Thread>> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.push_back(sim.Spawn("switcher", [&] {
        for (int n = 0; n < kSwitchesPerThread; ++n) sim.SleepMs(1);
      }));
    }
  });
  const double seconds = static_cast<double>(real.NowNs() - start_ns) / 1e9;
  std::printf("%.0f switches/s\n", static_cast<double>(sim.SwitchCount()) / seconds);
}
