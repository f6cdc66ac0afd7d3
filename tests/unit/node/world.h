// A metadata service and members of its cluster, in virtual time.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "metadata/memory/memory_metadata.h"
#include "node/membership.h"
#include "obs/null_metrics.h"
#include "runtime/sim_runtime.h"
#include "support/faulty_metadata.h"

namespace mooncake::node {

// Members of one cluster, without nodes around them.
class World {
 public:
  explicit World(Runtime& runtime)
      : runtime(runtime),
        state(std::make_shared<metadata::MemoryState>()),
        service(state, runtime),
        metadata(service, runtime) {}

  static MembershipOptions Options() {
    MembershipOptions options;
    options.lease_ttl_ms = 9'000;
    options.heartbeat_interval_ms = 3'000;
    return options;
  }
  std::unique_ptr<Membership> Make() { return Make(metadata); }
  // One with its own end of the service.
  std::unique_ptr<Membership> Make(MetadataStore& own) {
    return std::make_unique<Membership>(Options(), runtime, own, metrics);
  }
  Status Join(Membership& member, const std::string& stable_id, HolderAnswer answer,
              bool succeed = false, uint64_t limit_ms = 20'000) {
    LeaseRecord record;
    record.id.stable_id = stable_id;
    record.state = succeed ? NodeState::kStandby : NodeState::kActive;
    record.endpoint = stable_id + ":1";
    record.instance = ++instances;
    record.labels = {{"route", "true"}};
    return member.Join(record, succeed, runtime.NowMs() + limit_ms, [&](const LeaseRecord& holder) {
      asked.push_back(holder.id);
      return answer;
    });
  }
  std::unique_ptr<Membership> Started(const std::string& stable_id) {
    return Started(stable_id, metadata);
  }
  std::unique_ptr<Membership> Started(const std::string& stable_id, MetadataStore& own) {
    auto member = Make(own);
    EXPECT_TRUE(Join(*member, stable_id, HolderAnswer::kGone).ok());
    member->Start([](const ViewPtr&, const ViewPtr&) {});
    return member;
  }

  Runtime& runtime;
  std::shared_ptr<metadata::MemoryState> state;
  metadata::MemoryMetadata service;
  testing::FaultyMetadata metadata;
  obs::NullMetrics metrics;
  std::vector<NodeId> asked;
  uint32_t instances = 0;
};

inline void InWorld(uint64_t seed, const std::function<void(World&)>& body) {
  runtime::SimRuntime runtime(seed);
  runtime.Run([&] {
    World world(runtime);
    body(world);
  });
}

}  // namespace mooncake::node
