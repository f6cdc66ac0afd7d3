// Calls that come as frames on the Unix socket: what a client can do there, and what is refused.
#include <gtest/gtest.h>
#include <malloc.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "client/dummy/call_frame.h"
#include "mooncake/observability.h"
#include "raw_client.h"

namespace mooncake::daemon {
namespace {

using client::CallFrame;
using client::CallHeader;
using client::CallType;

class FramesTest : public RawClientTest {
 protected:
  // A connection for calls of a session; `version`: of the frames.
  Descriptor Calls(const v1::Session& session, uint64_t version = client::kCallVersion) {
    Descriptor socket = Connect();
    if (Ask(socket, MessageOf(SideType::kCalls, session, version, 0), -1) != 0) return {};
    return socket;
  }

  static bool Closed(const Descriptor& socket) {
    char byte = 0;
    return recv(socket.get(), &byte, 1, 0) == 0;
  }

  static v1::KeysRequest Keys(const std::string& key) {
    v1::KeysRequest request;
    request.mutable_keys()->set_blob(key);
    request.mutable_keys()->add_sizes(static_cast<uint32_t>(key.size()));
    return request;
  }

  const CallFrame::GiveUp never_ = [](bool) { return false; };
};

TEST_F(FramesTest, CallsAreAnswered) {
  const v1::Session session = Hello();
  const Descriptor main = Attached(session);
  const Descriptor socket = Calls(session);
  ASSERT_TRUE(socket);
  auto other = Client();
  ASSERT_TRUE(other->Put("k", BytesOf("v")).ok());
  CallFrame frame;
  for (const auto& [key, code] : {std::pair("k", 1), std::pair("missing", 0)}) {
    ASSERT_TRUE(frame.Pack(CallType::kExist, -1, Keys(key)));
    ASSERT_TRUE(frame.Send(socket.get(), never_).ok());
    ASSERT_TRUE(frame.Receive(socket.get(), never_).ok());
    EXPECT_EQ(frame.header().type, CallType::kExist);
    EXPECT_EQ(frame.header().code, 0);
    v1::CodesReply reply;
    ASSERT_TRUE(frame.Unpack(&reply));
    ASSERT_EQ(reply.codes_size(), 1);
    EXPECT_EQ(reply.codes(0), code);
  }
}

TEST_F(FramesTest, AFrameOfManyPacketsArrivesWhole) {
  const v1::Session session = Hello();
  const Descriptor main = Attached(session);
  const Descriptor socket = Calls(session);
  v1::KeysRequest request;
  for (int i = 0; i < 40; ++i) {
    request.mutable_keys()->mutable_blob()->append(std::string(60'000, static_cast<char>('a' + i)));
    request.mutable_keys()->add_sizes(60'000);
  }
  CallFrame frame;
  ASSERT_TRUE(frame.Pack(CallType::kSizes, -1, request));
  ASSERT_TRUE(frame.Send(socket.get(), never_).ok());  // More than the socket holds.
  ASSERT_TRUE(frame.Receive(socket.get(), never_).ok());
  v1::SizesReply reply;
  ASSERT_TRUE(frame.Unpack(&reply));
  EXPECT_EQ(reply.codes_size(), 40);
}

// In use, whichever thread's.
uint64_t HeapBytes() {
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

TEST_F(FramesTest, LargeCallsLeaveNoMemoryBehind) {
  const v1::Session session = Hello();
  const Descriptor main = Attached(session);
  const Descriptor socket = Calls(session);
  const auto call = [&](const v1::PutRequest& request) {
    CallFrame frame;
    ASSERT_TRUE(frame.Pack(CallType::kPut, -1, request));
    ASSERT_TRUE(frame.Send(socket.get(), never_).ok());
    ASSERT_TRUE(frame.Receive(socket.get(), never_).ok());
  };
  call({});
  const uint64_t before = HeapBytes();
  {
    v1::PutRequest large;
    large.set_inline_bytes(std::string(40 << 20, 'x'));
    call(large);
  }
  // Each of them makes another part of the message grow.
  for (int i = 0; i < 40; ++i) {
    v1::PutRequest many;
    for (int k = 0; k < i; ++k) many.mutable_policy()->add_preferred_segments("");
    many.mutable_policy()->add_preferred_segments(std::string(900'000, 's'));
    call(many);
  }
  call({});
  EXPECT_LT(HeapBytes(), before + (16 << 20));
}

TEST_F(FramesTest, AMalformedMessageIsAnsweredAndHarmless) {
  const v1::Session session = Hello();
  const Descriptor main = Attached(session);
  const Descriptor socket = Calls(session);
  CallFrame frame;
  for (const CallType type :
       {CallType::kPut, CallType::kAcquire, CallType::kExist, CallType::kRemove, CallType::kSizes,
        CallType::kHealth, CallType::kRemoveAll, CallType::kMetrics}) {
    const std::string garbage(1'000, '\xff');
    std::memcpy(frame.Start(type, -1, garbage.size()).data(), garbage.data(), garbage.size());
    ASSERT_TRUE(frame.Send(socket.get(), never_).ok());
    ASSERT_TRUE(frame.Receive(socket.get(), never_).ok());
    EXPECT_EQ(frame.header().code, static_cast<int32_t>(ErrorCode::kInvalidArgument));
  }
  v1::AcquireRequest unmarked;
  *unmarked.mutable_keys() = Keys("big").keys();
  unmarked.add_limits(1 << 20);
  ASSERT_TRUE(Client()->Put("big", BytesOf(std::string(100'000, 'b'))).ok());
  ASSERT_TRUE(frame.Pack(CallType::kAcquire, -1, unmarked));
  ASSERT_TRUE(frame.Send(socket.get(), never_).ok());
  ASSERT_TRUE(frame.Receive(socket.get(), never_).ok());
  EXPECT_EQ(frame.header().code, static_cast<int32_t>(ErrorCode::kInvalidArgument));
  EXPECT_EQ(Count("dummy_refused_total", "call"), 8u);
}

TEST_F(FramesTest, WhatIsNoFrameClosesTheConnectionAndIsCounted) {
  const v1::Session session = Hello();
  const Descriptor main = Attached(session);
  const auto packet_of = [](const CallHeader& header, const std::string& body) {
    return std::string(reinterpret_cast<const char*>(&header), sizeof(header)) + body;
  };
  const std::string packets[] = {
      packet_of({1, CallType::kExist, 0, 0}, ""),
      packet_of({client::kCallMagic, CallType::kExist, 0, UINT32_MAX}, ""),
      packet_of({client::kCallMagic, static_cast<CallType>(77), 0, 0}, ""),
      packet_of({client::kCallMagic, CallType::kExist, 0, 2}, "more"),
      "x",
  };
  for (const std::string& packet : packets) {
    const Descriptor socket = Calls(session);
    ASSERT_TRUE(client::SendPacket(socket.get(), BytesOf(packet), -1).ok());
    EXPECT_TRUE(Closed(socket));
  }
  EXPECT_EQ(Count("dummy_refused_total", "malformed"), 5u);
}

TEST_F(FramesTest, AFrameThatStopsHalfwayClosesTheConnection) {
  const v1::Session session = Hello();
  const Descriptor main = Attached(session);
  const Descriptor socket = Calls(session);
  CallHeader header;
  header.size = 1'000;
  ASSERT_TRUE(client::SendPacket(socket.get(), BytesAt(&header, sizeof(header)), -1).ok());
  EXPECT_TRUE(Closed(socket));
  // One that says nothing at all may say it later.
  const Descriptor quiet = Calls(session);
  pollfd look = {quiet.get(), POLLIN, 0};
  EXPECT_EQ(poll(&look, 1, 1'500), 0);
  CallFrame frame;
  ASSERT_TRUE(frame.Pack(CallType::kExist, -1, Keys("k")));
  ASSERT_TRUE(frame.Send(quiet.get(), never_).ok());
  EXPECT_TRUE(frame.Receive(quiet.get(), never_).ok());
}

TEST_F(FramesTest, OnlyAnAttachedSessionGetsAConnectionForCalls) {
  const v1::Session session = Hello();
  EXPECT_FALSE(Calls(session));
  Descriptor main = Attached(session);
  EXPECT_FALSE(Calls(session, client::kCallVersion + 1));
  v1::Session half = session;
  half.set_low(session.low() + 1);
  EXPECT_FALSE(Calls(half));
  EXPECT_GE(Count("dummy_refused_total", "calls"), 3u);
  // The connections of a session end with its first one.
  const Descriptor socket = Calls(session);
  ASSERT_TRUE(socket);
  main = Descriptor();
  EXPECT_TRUE(Closed(socket));
}

TEST_F(FramesTest, WhatAClientReadsIsKeptWhileItsMarkLasts) {
  const v1::Session session = Hello();
  const Descriptor main = Attached(session);
  const Descriptor socket = Calls(session);
  auto other = Client();
  ASSERT_TRUE(other->Put("big", BytesOf(std::string(100'000, 'b'))).ok());
  auto* words = reinterpret_cast<uint32_t*>(control_->bytes().data());
  words[7] = 3;
  v1::AcquireRequest request;
  *request.mutable_keys() = Keys("big").keys();
  request.add_limits(1 << 20);
  request.mutable_mark()->set_slot(7);
  request.mutable_mark()->set_sequence(3);
  CallFrame frame;
  ASSERT_TRUE(frame.Pack(CallType::kAcquire, -1, request));
  ASSERT_TRUE(frame.Send(socket.get(), never_).ok());
  ASSERT_TRUE(frame.Receive(socket.get(), never_).ok());
  ASSERT_EQ(frame.header().code, 0);
  EXPECT_EQ(Count("dummy_leases", "default"), 1u);
  // The key is gone; its bytes stay, and count, until the client has read them.
  ASSERT_TRUE(other->Remove("big").ok());
  EXPECT_GE(daemon_->store().ListSegments(false)[0].used_bytes, 100'000u);
  std::atomic_ref<uint32_t>(words[7]).store(0);
  EXPECT_EQ(Count("dummy_leases", "default"), 0u);
  EXPECT_EQ(daemon_->store().ListSegments(false)[0].used_bytes, 0u);
}

TEST_F(FramesTest, CallsAreCountedByTheApiThatWasCalled) {
  auto store = Client();
  {
    const ApiScope scope("upsert");
    ASSERT_TRUE(store->Put("k", BytesOf("v")).ok());
  }
  {
    const ApiScope scope("get_buffer");
    EXPECT_TRUE(store->Get("k").ok());
    EXPECT_FALSE(store->Get("missing").ok());
  }
  EXPECT_TRUE(store->Exists("k").value_or(false));
  const std::string text = daemon_->store().MetricsText();
  const auto counted = [&](const std::string& operation, const std::string& result) {
    for (size_t at = 0;
         (at = text.find("mooncake_store_operation_total{", at)) != std::string::npos; ++at) {
      const std::string line = text.substr(at, text.find('\n', at) - at);
      if (line.find('"' + operation + '"') == std::string::npos) continue;
      if (line.find('"' + result + '"') == std::string::npos) continue;
      return line.substr(line.rfind(' ') + 1);
    }
    return std::string("none");
  };
  EXPECT_EQ(counted("upsert", "ok"), "1");
  EXPECT_EQ(counted("get_buffer", "ok"), "1");
  EXPECT_EQ(counted("get_buffer", "miss"), "1");
  EXPECT_EQ(counted("is_exist", "ok"), "1");
}

// The tests run as root, so the stranger is a child that becomes somebody else.
TEST_F(FramesTest, AnotherUsersConnectionIsRefused) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  int socket = client::ConnectTo(daemon_->socket_path(), 5'000)->Take();
  close(socket);
  const std::string path = daemon_->socket_path();
  const std::string folder = path.substr(0, path.rfind('/'));
  // The folder alone keeps strangers out; the check behind it is to hold by itself.
  ASSERT_EQ(chmod(folder.c_str(), 0711), 0);
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(65'534) != 0 || setuid(65'534) != 0) _exit(2);
    auto stranger = client::ConnectTo(path, 5'000);
    if (!stranger.ok()) _exit(3);
    char byte = 0;
    _exit(recv(stranger->get(), &byte, 1, 0) == 0 ? 0 : 4);
  }
  int state = 0;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_TRUE(WIFEXITED(state));
  EXPECT_EQ(WEXITSTATUS(state), 0);
  EXPECT_EQ(Count("dummy_refused_total", "user"), 1u);
  ASSERT_EQ(chmod(folder.c_str(), 0700), 0);
}

}  // namespace
}  // namespace mooncake::daemon
