// A client of a daemon that says what it likes, byte for byte.
#pragma once

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "client/dummy/side_channel.h"
#include "client/dummy/unix_socket.h"
#include "daemon_fixture.h"
#include "mooncake/v1/store_daemon.grpc.pb.h"

namespace mooncake::daemon {

using client::Descriptor;
using client::SideAnswer;
using client::SideMessage;
using client::SideType;

class RawClientTest : public DaemonTest {
 protected:
  void SetUp() override {
    DaemonTest::SetUp();
    StartDaemon("raw-" +
                std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    channel_ =
        grpc::CreateChannel(config_.client_server_address, grpc::InsecureChannelCredentials());
    stub_ = v1::StoreDaemon::NewStub(channel_);
  }

  void TearDown() override {
    // Whatever was sent: the daemon serves the next client.
    auto store = Client();
    ASSERT_TRUE(store);
    EXPECT_TRUE(store->Put("after", BytesOf("all")).ok());
    EXPECT_EQ(store->Get("after").value_or(""), "all");
  }

  v1::Session Hello() {
    grpc::ClientContext context;
    v1::HelloRequest request;
    request.set_version(client::kDaemonProtocolVersion);
    request.set_scope("worker-1");
    v1::HelloReply reply;
    EXPECT_TRUE(stub_->Hello(&context, request, &reply).ok());
    return reply.session();
  }

  Descriptor Connect() {
    auto socket = client::ConnectTo(daemon_->socket_path(), 5'000);
    EXPECT_TRUE(socket.ok());
    return socket.ok() ? *std::move(socket) : Descriptor();
  }

  // The code of the answer; nullopt: the daemon closed the connection.
  std::optional<int> Ask(const Descriptor& socket, const SideMessage& message, int fd) {
    if (!client::SendPacket(socket.get(), BytesAt(&message, sizeof(message)), fd).ok()) {
      return std::nullopt;
    }
    SideAnswer answer;
    const auto packet =
        client::ReceivePacket(socket.get(), MutableBytesAt(&answer, sizeof(answer)));
    if (!packet.ok() || packet->size == 0) return std::nullopt;
    return answer.code;
  }

  SideMessage MessageOf(SideType type, const v1::Session& session, uint64_t id, uint64_t size) {
    SideMessage message;
    message.type = type;
    message.session_high = session.high();
    message.session_low = session.low();
    message.id = id;
    message.size = size;
    return message;
  }

  Descriptor Attached(const v1::Session& session) {
    Descriptor socket = Connect();
    control_ = MappedMemory::MapShared(client::kControlBytes, 0, true);
    EXPECT_EQ(Ask(socket, MessageOf(SideType::kAttach, session, 0, client::kControlBytes),
                  control_->fd()),
              0);
    return socket;
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::StoreDaemon::Stub> stub_;
  Result<MappedMemory> control_ = MappedMemory();
};

}  // namespace mooncake::daemon
