#include "bench/limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "bench/options.h"
#include "bench/raw_server.h"

namespace mooncake::bench {
namespace {

constexpr uint64_t kCallsMin = 3;

// `call` is run by every thread, over and over, until the time is up.
Limit RunThreads(Runtime& runtime, const LimitRequest& request,
                 const std::function<bool(uint32_t thread)>& call) {
  std::vector<Limit> limits(request.threads);
  const uint64_t start_ns = runtime.NowNs();
  const uint64_t end_ns = start_ns + request.budget_ms * 1'000'000;
  std::vector<std::unique_ptr<Thread>> threads;
  threads.reserve(request.threads);
  for (uint32_t t = 0; t < request.threads; ++t) {
    threads.push_back(runtime.Spawn("raw-client", [&, t] {
      while (limits[t].samples.count() < kCallsMin || runtime.NowNs() < end_ns) {
        const uint64_t before_ns = runtime.NowNs();
        if (!call(t)) return;
        limits[t].samples.Add(runtime.NowNs() - before_ns);
        limits[t].bytes += request.bytes;
      }
    }));
  }
  threads.clear();
  Limit all;
  for (const Limit& limit : limits) all.Merge(limit);
  all.wall_ns = runtime.NowNs() - start_ns;
  return all;
}

Result<transfer::UniqueFd> Connect(uint16_t port) {
  MC_TRY(const auto addresses, transfer::ResolveEndpoint(fmt::format("127.0.0.1:{}", port)));
  transfer::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), addresses[0].get(), addresses[0].size) != 0) {
    return TransportError(fmt::format("127.0.0.1:{}: {}", port, transfer::ErrnoText(errno)));
  }
  transfer::TuneConnection(fd.get(), 0);
  transfer::TuneSameHost(fd.get());  // As the store does: a limit that is held back is none.
  return fd;
}

bool RawCall(int fd, RawKind kind, MutableBytes memory) {
  const RawRequest request = {kind == RawKind::kPut ? uint64_t{1} : 0, memory.size()};
  if (!WriteAll(fd, &request, sizeof request)) return false;
  if (kind == RawKind::kGet) return ReadAll(fd, memory.data(), memory.size());
  char ack = 0;
  return WriteAll(fd, memory.data(), memory.size()) && ReadAll(fd, &ack, 1);
}

// One buffer for each thread, touched.
Result<std::vector<MappedMemory>> Buffers(const LimitRequest& request) {
  std::vector<MappedMemory> buffers;
  for (uint32_t t = 0; t < request.threads; ++t) {
    MC_TRY(MappedMemory memory, MappedMemory::Map(std::max<uint64_t>(request.bytes, 1), 0));
    std::memset(memory.bytes().data(), 2, memory.bytes().size());
    buffers.push_back(std::move(memory));
  }
  return buffers;
}

}  // namespace

double Limit::GibPerS() const {
  return wall_ns == 0 ? 0
                      : static_cast<double>(bytes) / kPerGiB / (static_cast<double>(wall_ns) / 1e9);
}

void Limit::Merge(const Limit& other) {
  samples.Merge(other.samples);
  bytes += other.bytes;
  wall_ns += other.wall_ns;
}

Result<Limit> MeasureTcp(Runtime& runtime, uint16_t port, RawKind kind, LimitRequest request) {
  MC_TRY(const std::vector<MappedMemory> buffers, Buffers(request));
  std::vector<transfer::UniqueFd> connections;
  for (uint32_t t = 0; t < request.threads; ++t) {
    MC_TRY(transfer::UniqueFd fd, Connect(port));
    connections.push_back(std::move(fd));
  }
  return RunThreads(runtime, request, [&](uint32_t t) {
    return RawCall(connections[t].get(), kind, buffers[t].bytes().first(request.bytes));
  });
}

Result<Limit> MeasureMemcpy(Runtime& runtime, LimitRequest request) {
  MC_TRY(const std::vector<MappedMemory> buffers, Buffers(request));
  const uint64_t region_bytes = std::max(kRawRegionBytes, request.bytes);
  MC_TRY(const MappedMemory region, MappedMemory::Map(region_bytes, 0));
  std::memset(region.bytes().data(), 1, region_bytes);
  std::vector<uint64_t> offsets(request.threads);
  for (uint32_t t = 0; t < request.threads; ++t) offsets[t] = t * region_bytes / request.threads;
  return RunThreads(runtime, request, [&](uint32_t t) {
    if (offsets[t] + request.bytes > region_bytes) offsets[t] = 0;
    std::memcpy(buffers[t].bytes().data(), region.bytes().data() + offsets[t], request.bytes);
    offsets[t] += request.bytes;
    return true;
  });
}

}  // namespace mooncake::bench
