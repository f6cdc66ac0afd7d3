// MirrorStory: values whose authority dies while their owner stands still.
#pragma once

#include <string>
#include <vector>

#include "support/sim_cluster.h"

namespace mooncake::testing {

// Each key is left alone, removed or overwritten (by another owner) while the first owner stands
// still and before the authority dies. For sim threads only.
class MirrorStory {
 public:
  // REQUIRES: four live nodes at least, and a view that has them.
  explicit MirrorStory(SimCluster& cluster);

  SimNode& authority() { return authority_; }
  SimNode& owner() { return owner_; }

  // Puts the values on the owner.
  void Write();
  // Stops the owner, and changes the keys.
  void Change();
  // The live nodes read what the last change of each key says.
  void Check();

 private:
  enum class Fate : uint8_t { kKept, kRemoved, kOverwritten };
  struct Key {
    std::string name;
    Fate fate;
  };
  void Expect(const Status& status, const std::string& what);

  SimCluster& cluster_;
  SimNode& authority_;
  SimNode& owner_;
  SimNode& other_;
  std::vector<Key> keys_;
};

}  // namespace mooncake::testing
