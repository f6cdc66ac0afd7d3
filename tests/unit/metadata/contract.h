// What every MetadataStore adapter must do (contract.cc, contract_leases.cc), as tests over a
// world: one service, any number of handles to it, its clock, and its loss of memory.
//
//   INSTANTIATE_TEST_SUITE_P(Memory, MetadataContract, Worlds("memory", MakeMemoryWorld));
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "metadata/metadata_store.h"

namespace mooncake::testing {

class MetadataWorld {
 public:
  virtual ~MetadataWorld() = default;
  // A new client of the service, in another keyspace if asked.
  virtual std::unique_ptr<MetadataStore> Connect(const std::string& keyspace) = 0;
  // At least `ms` pass on the service's clock.
  virtual void Pass(uint64_t ms) = 0;
  // The service loses everything and goes on.
  virtual void Forget() = 0;
};

struct WorldMaker {
  std::string name;
  std::function<std::unique_ptr<MetadataWorld>()> make;
};

class MetadataContract : public ::testing::TestWithParam<WorldMaker> {
 protected:
  // A lease that lasts through every test, and one that Pass(kBriefMs) ends.
  static constexpr uint64_t kLongMs = 600'000;
  static constexpr uint64_t kBriefMs = 20;

  MetadataContract() : world_(GetParam().make()), store_(world_->Connect("ks")) {}

  static LeaseRecord Record(const std::string& stable_id);
  NodeId MustAcquire(const std::string& stable_id);
  // That of a standby beside `predecessor`.
  LeaseRecord MustStandBeside(const NodeId& predecessor);
  // Lets the live lease of `record` lapse, without the service being asked about it.
  void Lapse(const LeaseRecord& record);
  uint64_t Revision();
  // ReadChanges, or the test fails.
  MembershipChanges Changes(uint64_t since);

  std::unique_ptr<MetadataWorld> world_;
  std::unique_ptr<MetadataStore> store_;
};

inline auto Worlds(std::string name, std::function<std::unique_ptr<MetadataWorld>()> make) {
  return ::testing::Values(WorldMaker{std::move(name), std::move(make)});
}

}  // namespace mooncake::testing
