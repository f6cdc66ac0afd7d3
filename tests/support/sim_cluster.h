// SimCluster: a cluster of nodes in one process under SimRuntime, whose network, metadata and
// processes fail as a test says; and clients whose every answer is recorded and checked.
//
//   SimReport report = RunSim({.seed = 7, .nodes = 5}, [](SimCluster& cluster) {
//     cluster.StartClients({.clients = 4});
//     cluster.SleepMs(5'000);
//     cluster.Kill(*cluster.AnyLive());
//     cluster.SleepMs(5'000);
//   });
//   EXPECT_EQ(report.problems, "");
//
// After the body the clients end, faults stop, time passes, and everything has to be exact again:
// see SimCluster::Finish.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "metadata/memory/memory_metadata.h"
#include "runtime/sim_runtime.h"
#include "runtime/xoshiro.h"
#include "support/history.h"
#include "support/sim_node.h"

namespace mooncake::testing {

struct SimOptions {
  uint64_t seed = 1;
  int nodes = 5;
  int nodes_per_host = 1;
  uint64_t segment_bytes = 1 << 20;
  transfer::NetworkFaults faults = {.latency_ms_min = 0, .latency_ms_max = 2};
  // Whether bytes may arrive that were not sent (NetworkFaults::corrupt). Where they may not, none
  // ever fail their checksum.
  bool corruption = false;
  // What the clients may be told: see HistoryRules.
  bool losses = false;
  bool revivals = false;
  bool failures = false;
};

struct SimWorkload {
  int clients = 6;
  int keys = 48;
  uint64_t value_bytes_max = 600;
  uint64_t think_ms_max = 40;
  int batch_max = 4;
  bool removes = true;
  bool policies = true;  // Some puts have two replicas, some prefer the own node.
};

struct SimReport {
  std::string problems;  // Empty: none.
  uint64_t trace_hash = 0;
  uint64_t operations = 0;
};

class SimCluster {
 public:
  SimCluster(runtime::SimRuntime& runtime, const SimOptions& options);
  ~SimCluster();

  // --- Members ------------------------------------------------------------------------------
  // nullptr: it could not join, which is a problem unless `may_fail`.
  SimNode* Join(const std::string& stable_id, bool may_fail = false);
  // New ones, at once, that reach the metadata service, whatever the others do. Returns the last.
  SimNode* JoinAhead(int count = 1);
  SimNode* JoinNew() { return Join("n" + std::to_string(++last_number_)); }
  void Leave(SimNode& node);
  // Leaves once nothing is left on it.
  void DrainAndLeave(SimNode& node);
  void Kill(SimNode& node);
  void Pause(SimNode& node);
  void Resume(SimNode& node);
  std::vector<SimNode*> Live() const;
  SimNode* AnyLive();

  // --- Faults -------------------------------------------------------------------------------
  void SetFaults(const transfer::NetworkFaults& faults);
  // The live nodes in two groups, at random.
  void Partition();
  // What one live node sends to another is lost.
  void BlockOneWay();
  void HealNetwork();
  // A false alarm: the metadata service is told that a node does not answer.
  void Accuse(SimNode& node);
  void SetMetadataFault(MetadataFault fault);
  void WipeMetadata();

  // --- Clients ------------------------------------------------------------------------------
  void StartClients(const SimWorkload& workload);
  void StopClients();

  // Ends clients and faults, lets time pass, and checks: the history; that every node is whole
  // again and answers; that space, extents and routes agree to the byte.
  void Finish();
  std::string Problems() const;

  void SleepMs(uint64_t ms) { runtime_.SleepMs(ms); }
  uint64_t Pick(uint64_t count) { return random_.Next() % count; }
  // Something that cannot be true: the run has failed.
  void Problem(std::string text) { problems_.push_back(std::move(text)); }
  History& history() { return history_; }

 private:
  friend class SimClient;
  node::NodeConfig ConfigFor(const std::string& stable_id) const;
  std::string HostOf(const std::string& stable_id) const;
  void Note(const std::string& text) { history_.Note(text, runtime_.NowMs()); }
  void CheckLiveness();
  void CheckChecksums();

  runtime::SimRuntime& runtime_;
  const SimOptions options_;
  runtime::Xoshiro random_;
  transfer::MemoryNetwork network_;
  std::shared_ptr<metadata::MemoryState> metadata_state_;
  metadata::MemoryMetadata metadata_;
  MetadataFault metadata_fault_ = MetadataFault::kNone;
  std::vector<std::unique_ptr<SimNode>> nodes_;
  int last_number_ = 0;
  std::vector<std::unique_ptr<Thread>> reapers_;

  History history_;
  SimWorkload workload_;
  uint64_t next_version_ = 1;
  bool stop_clients_ = false;
  std::vector<std::unique_ptr<Thread>> clients_;
  std::vector<std::string> problems_;
  std::string trace_;
};

SimReport RunSim(const SimOptions& options, const std::function<void(SimCluster&)>& body);

}  // namespace mooncake::testing
