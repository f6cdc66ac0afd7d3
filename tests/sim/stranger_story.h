// StrangerStory: values that must be there at the end, at every node.
#pragma once

#include <map>
#include <string>

#include "support/sim_cluster.h"

namespace mooncake::testing {

// For sim threads only.
class StrangerStory {
 public:
  // REQUIRES: three live nodes at least.
  explicit StrangerStory(SimCluster& cluster) : cluster_(cluster) {}

  // Each node writes values: some routed, some to itself.
  void Write();
  // One node, of those that there are, reaches the metadata service again.
  void LetBack();
  // New nodes join at once.
  void Join(int count = 1);
  // The last of them writes values: new ones, and over old ones. Where somebody is back who knows
  // of others that are not, it has to wait for them: longer than their leases, if they wait for it.
  void WriteThere();
  // Two nodes' values, by a third one whose keys they are, which dies as soon as it has answered.
  void WriteAndKill();
  // A node dies, and comes again under the same name, as the service has forgotten its epoch. What
  // died with it is not there; what is put instead, and in the places of that, stays.
  void ComeAgain();
  void Check();

 private:
  void Put(SimNode& writer, const std::string& key, uint64_t version, bool if_absent,
           const ReplicateConfig* replicate);

  SimCluster& cluster_;
  SimNode* stranger_ = nullptr;
  std::map<std::string, std::string> wanted_;
};

}  // namespace mooncake::testing
