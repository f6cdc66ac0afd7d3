// The served side of requests that are a message and nothing else.
#pragma once

#include <string>

#include "node/core.h"
#include "node/wire.h"

namespace mooncake::node {

// Each fills `reply` and returns true; or returns false, without effect, when it would block
// and may not. A request that does not make sense clears `*valid`.
bool ServePing(Core& core, const v1::PingRequest& request, bool may_block, v1::PingReply* reply);
void ServeExist(Core& core, const v1::ExistRequest& request, v1::ExistReply* reply, bool* valid);
void ServeRoute(Core& core, const v1::RouteRequest& request, v1::RouteReply* reply, bool* valid);
bool ServePublish(Core& core, const v1::PublishRequest& request, bool may_block,
                  v1::PublishReply* reply, bool* valid);
void ServeRemove(Core& core, const v1::RemoveRequest& request, v1::RemoveReply* reply, bool* valid);
void ServeRemoveAll(Core& core, const v1::RemoveAllRequest& request, v1::RemoveAllReply* reply,
                    bool* valid);
void ServeNotice(Core& core, const v1::NoticeRequest& request, v1::NoticeReply* reply, bool* valid);
void ServeCheck(Core& core, const v1::CheckRequest& request, v1::CheckReply* reply, bool* valid);
void ServePull(Core& core, const v1::PullRequest& request, v1::PullReply* reply, bool* valid);
void ServeInventory(Core& core, const v1::InventoryRequest& request, v1::InventoryReply* reply,
                    bool* valid);
void ServeMirror(Core& core, const v1::MirrorRequest& request, v1::MirrorReply* reply, bool* valid);

void ServeMigrate(Core& core, const v1::MigrateRequest& request, v1::MigrateReply* reply,
                  bool* valid);

}  // namespace mooncake::node
