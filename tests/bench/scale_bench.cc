// What routing costs in large clusters: the table of docs/scale.md.
//
//   scale_bench [keys]      one million by default
//
// For each cluster size: building the first view and one that differs by a node, the spread of
// the slots, the slots that move when a node goes, a look-up. Then the memory of a route.
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "node/extent_store.h"
#include "node/route_table.h"
#include "routing/slot_set.h"
#include "routing/view.h"

namespace mooncake {
namespace {

using Clock = std::chrono::steady_clock;
using routing::ClusterView;
using routing::Slots;

double MsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::vector<LeaseRecord> Leases(int count) {
  std::vector<LeaseRecord> leases;
  for (int i = 0; i < count; ++i) {
    LeaseRecord& lease = leases.emplace_back();
    lease.id = {fmt::format("node-{}", i), 1};
    lease.state = NodeState::kActive;
    lease.endpoint = fmt::format("10.0.{}.{}:7000", i / 250, i % 250);
    lease.labels = {{"route", "true"}, {"storage", "true"}};
    lease.segments = {{lease.id.stable_id + "-segment", 1ULL << 34, 0, NodeState::kActive}};
  }
  return leases;
}

std::vector<uint32_t> SlotsPerNode(const ClusterView& view) {
  std::vector<uint32_t> counts(view.nodes().size());
  for (routing::Slot slot = 0; slot < view.slots().count(); ++slot) ++counts[view.Ranks(slot)[0]];
  return counts;
}

// Slots whose first authority differs.
uint32_t Moved(const ClusterView& before, const ClusterView& after) {
  uint32_t moved = 0;
  for (routing::Slot slot = 0; slot < before.slots().count(); ++slot) {
    moved +=
        before.node(before.Ranks(slot)[0]).lease.id != after.node(after.Ranks(slot)[0]).lease.id;
  }
  return moved;
}

double LookupNs(const ClusterView& view) {
  constexpr uint64_t kLookups = 20'000'000;
  uint64_t sum = 0;
  uint64_t hash = 1;
  const auto start = Clock::now();
  for (uint64_t i = 0; i < kLookups; ++i) {
    hash = hash * 6364136223846793005ULL + 1442695040888963407ULL;
    sum += view.RanksOf(hash)[0];
  }
  const double ns = MsSince(start) * 1e6 / kLookups;
  if (sum == 0) fmt::print("\n");  // The look-ups are not to be left out.
  return ns;
}

void MeasureCluster(int nodes, uint32_t slot_bits) {
  routing::ViewBuilder builder("", Slots(slot_bits));
  std::vector<LeaseRecord> leases = Leases(nodes);
  for (LeaseRecord& lease : leases) lease.slot_bits = slot_bits;
  auto start = Clock::now();
  const auto before = builder.Build(1, leases);
  const double build_ms = MsSince(start);
  const std::vector<uint32_t> counts = SlotsPerNode(*before);
  const double fair = static_cast<double>(before->slots().count()) / nodes;
  double squares = 0;
  for (uint32_t count : counts) squares += (count - fair) * (count - fair);
  const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
  const uint32_t share = counts[before->Find(leases.back().id)];
  leases.pop_back();
  start = Clock::now();
  const auto after = builder.Build(2, leases);
  const double change_ms = MsSince(start);
  fmt::print(
      "| {} | 2^{} | {:.0f} ms | {:.1f} ms | {:+.1f} % … {:+.1f} % | {:.1f} % | {} of {} | {:.1f} "
      "ns "
      "|\n",
      nodes, slot_bits, build_ms, change_ms, (*least / fair - 1) * 100, (*most / fair - 1) * 100,
      std::sqrt(squares / nodes) / fair * 100, Moved(*before, *after), share, LookupNs(*before));
}

void MeasureRoutes(uint64_t keys) {
  node::ExtentStore extents;
  node::RouteTable routes(extents);
  std::vector<routing::Slot> slots(Slots().count());
  for (routing::Slot slot = 0; slot < slots.size(); ++slot) slots[slot] = slot;
  routes.BeginTakeover(slots);
  routes.EndTakeover(slots, 1);
  const uint64_t seed = routing::ScopeSeed({});
  const size_t before = mallinfo2().uordblks;
  const auto start = Clock::now();
  for (uint64_t i = 0; i < keys; ++i) {
    // The length of a page key of a serving engine.
    const std::string key = fmt::format("{:064x}_k", i * 0x9e3779b97f4a7c15ULL);
    node::Publication publication;
    publication.size = 65'536;
    publication.has_checksum = true;
    publication.remote = {{static_cast<node::NameIndex>(1 + i % 1000), 0, i * 65'536, i + 1}};
    node::Version version = 0;
    node::Superseded superseded;
    (void)routes.Publish(node::MakeKeyRef({0, seed}, key), std::move(publication), &version,
                         &superseded);
  }
  const double ns = MsSince(start) * 1e6 / static_cast<double>(keys);
  const double bytes =
      static_cast<double>(mallinfo2().uordblks - before) / static_cast<double>(keys);
  fmt::print("\n{} routes of 66-byte keys: {:.0f} bytes each, published in {:.0f} ns each\n", keys,
             bytes, ns);
}

}  // namespace
}  // namespace mooncake

int main(int argc, char** argv) {
  fmt::print(
      "| nodes | slots | first view | view less one node | slots a node, against fair | standard "
      "deviation "
      "| slots moved when a node goes | look-up |\n|---|---|---|---|---|---|---|---|\n");
  for (int nodes : {3, 10, 30, 100, 300, 1000}) mooncake::MeasureCluster(nodes, 16);
  for (auto [nodes, bits] : {std::pair(100, 18), {300, 19}, {1000, 21}}) {
    mooncake::MeasureCluster(nodes, static_cast<uint32_t>(bits));
  }
  mooncake::MeasureRoutes(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1'000'000);
  return 0;
}
