// What goes into a RouteTable and comes out of it: publications, what they replaced, and what a
// node knows of the slots that it has served.
#pragma once

#include <optional>
#include <vector>

#include "node/extent_store.h"
#include "node/types.h"

namespace mooncake::node {

// A route that a change took out of use, for whoever gives the space back.
struct Superseded {
  std::vector<Place> remote;    // Replicas of other owners.
  ExtentPin local;              // Our own extent, if one was among the replicas.
  Version version = 0;          // Of the route that went; 0: none did.
  bool is_the_new_one = false;  // The publication itself, as the key was there (if_absent).
};

// A change that was asked for under an older view than the one that gave the slot to this node
// may have lain in a queue for long: its asker may have had it done by another authority since,
// and others have changed the key after that. It is answered with kItemWrongAuthority.
inline constexpr uint64_t kNewest = ~uint64_t{0};

struct Publication {
  uint64_t size = 0;
  uint64_t checksum = 0;
  bool has_checksum = false;
  bool soft_pin = false;
  std::vector<Place> remote;
  ExtentPin local;  // Our own extent, if one is among the replicas.
  bool if_absent = false;
  std::optional<Version> expected;  // Only if the current version is this one: the same value,
  std::vector<Place> kept;          // and still has these replicas: an owner may drop one.
  uint64_t published_ms = 0;        // As in Age, where it may be asked for.
  uint64_t revision = kNewest;      // Of the asker's view when it asked.
};

// What a node knows of a slot that it has served: every route as of the version `upto`. A route
// of that version or an older one that it does not name was removed or overwritten.
struct Truth {
  routing::Slot slot = 0;
  Version upto = 0;
  bool passed_on = false;  // Another authority has asked for it, and may know more by now.
  // This node was away, or was about to ask others: one that took the slot over may know more.
  bool unsure = false;
  // The revision by which the cluster began that it knows. Of routes that are older than that it
  // says nothing: they are of a cluster that the metadata service had forgotten.
  uint64_t era = 0;
};

struct Fenced {
  std::vector<Truth> served;
  std::vector<routing::Slot> kept;  // Ours by a newer view than the asker's.
};

}  // namespace mooncake::node
