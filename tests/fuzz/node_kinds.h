// The requests that nodes send each other, with an example of each, and what answers them.
#pragma once

#include <google/protobuf/message.h>

#include <memory>
#include <vector>

#include "node/wire.h"

namespace mooncake::node {

struct RequestKind {
  MessageType type;
  std::shared_ptr<google::protobuf::Message> request;
  std::shared_ptr<google::protobuf::Message> reply;
};

// Of all types. They are about the key "key" and the node "a:1".
std::vector<RequestKind> RequestKinds();

}  // namespace mooncake::node
