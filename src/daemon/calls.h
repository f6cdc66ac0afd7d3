// Calls: what dummy clients ask of the daemon, whichever way the question came
// (gRPC, or a frame on the Unix socket). What a message says is checked before it is used.
// Thread-safe.
#pragma once

#include <functional>
#include <string>

#include "client/dummy/call_frame.h"
#include "client/local_store.h"
#include "daemon/scratch.h"
#include "daemon/session.h"
#include "mooncake/v1/store_daemon.pb.h"

namespace mooncake::daemon {

class Calls {
 public:
  // All outlive it.
  Calls(client::LocalStore& store, Sessions& sessions, Scratch& scratch)
      : store_(store), sessions_(sessions), scratch_(scratch) {}

  // The status is that of the whole call, which then did nothing: kInvalidArgument for a malformed
  // message, kBackPressure for too many leases. The outcomes of items are in the reply.
  Status Put(Session& session, const v1::PutRequest& request, v1::CodesReply* reply);
  Status Acquire(Session& session, const v1::AcquireRequest& request, v1::AcquireReply* reply);
  Status Exist(const v1::KeysRequest& request, v1::CodesReply* reply);
  Status Remove(const v1::KeysRequest& request, v1::CodesReply* reply);
  Status Sizes(const v1::KeysRequest& request, v1::SizesReply* reply);
  Status Health(v1::HealthReply* reply);
  Status RemoveAll(const v1::RemoveAllRequest& request, v1::RemoveAllReply* reply);
  Status Metrics(v1::MetricsReply* reply);

  // The messages of one connection, kept from call to call for their memory.
  struct Messages {
    v1::PutRequest put;
    v1::AcquireRequest acquire;
    v1::AcquireReply acquired;
    v1::KeysRequest keys;
    v1::CodesReply codes;
    v1::SizesReply sizes;
  };
  // Makes the call of a frame and puts the answer in its place. kInvalidArgument: no such call.
  Status Serve(Session& session, Messages& messages, client::CallFrame* frame);

 private:
  Status ServeRare(client::CallFrame* frame);

  client::LocalStore& store_;
  Sessions& sessions_;
  Scratch& scratch_;
};

}  // namespace mooncake::daemon
