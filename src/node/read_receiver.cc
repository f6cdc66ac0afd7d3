#include "node/read_receiver.h"

namespace mooncake::node {

Status ReadReceiver::Place(size_t i, uint64_t size, uint64_t checksum) {
  const ReadItem& item = op_.item(items_[i]);
  const uint64_t bytes = op_.ranged() ? item.limit : size;
  // Before any memory is taken for it: the size is only what the peer says.
  if (bytes > payload_left_) return TransportError("reply shorter than it says");
  const auto targets = op_.TargetsOf(items_[i], bytes);
  payload_left_ -= bytes;
  values[i] = static_cast<uint32_t>(next_value_++);
  if (!targets) {  // The memory could not be had: read the bytes and drop them.
    codes[i] = CodeOf(ErrorCode::kTooSmall);
    const MutableBytes nowhere{static_cast<std::byte*>(nullptr), bytes};
    plan_.Add({&nowhere, 1}, bytes, false, 0);
    return Ok();
  }
  plan_.Add(*targets, bytes, !op_.ranged(), checksum);
  return Ok();
}

Status ReadReceiver::ReadGet(std::string_view message) {
  v1::GetReply reply;
  const int count = static_cast<int>(items_.size());
  if (!reply.ParseFromArray(message.data(), static_cast<int>(message.size())) ||
      reply.codes_size() != count || reply.sizes_size() != count ||
      reply.checksums_size() != count || reply.routed_size() != reply.routes_size()) {
    return TransportError("malformed reply to a get");
  }
  revision = reply.revision();
  codes.assign(reply.codes().begin(), reply.codes().end());
  sizes.assign(reply.sizes().begin(), reply.sizes().end());
  checksums.assign(reply.checksums().begin(), reply.checksums().end());
  versions.clear();
  if (reply.versions_size() == count) {
    versions.assign(reply.versions().begin(), reply.versions().end());
  }
  for (int r = 0; r < reply.routed_size(); ++r) {
    std::optional<Route> route = ReadRoute(reply.routes(r), op_.names());
    if (!route || reply.routed(r) >= items_.size()) {
      return TransportError("malformed route in a reply");
    }
    routes[reply.routed(r)] = *std::move(route);
  }
  for (int i = 0; i < count; ++i) {
    if (codes[i] != kItemOk || routes[i]) continue;
    MC_RETURN_IF_ERROR(Place(i, sizes[i], reply.checksums(i)));
  }
  return Ok();
}

Status ReadReceiver::ReadPlaces(std::string_view message) {
  v1::ReadReply reply;
  if (!reply.ParseFromArray(message.data(), static_cast<int>(message.size())) ||
      reply.codes_size() != static_cast<int>(items_.size())) {
    return TransportError("malformed reply to a read");
  }
  codes.assign(reply.codes().begin(), reply.codes().end());
  sizes.assign(items_.size(), 0);
  for (size_t i = 0; i < items_.size(); ++i) {
    if (codes[i] != kItemOk) continue;
    const Route& route = op_.known_route(items_[i]);
    MC_RETURN_IF_ERROR(Place(i, route.size, route.checksum));
  }
  return Ok();
}

Result<std::span<const MutableBytes>> ReadReceiver::OnReply(std::string_view message,
                                                            uint64_t payload_size) {
  plan_.Clear();
  next_value_ = 0;
  payload_left_ = payload_size;
  values.assign(items_.size(), 0);
  routes.assign(items_.size(), std::nullopt);
  MC_RETURN_IF_ERROR(by_place_ ? ReadPlaces(message) : ReadGet(message));
  if (payload_left_ != 0) return TransportError("reply longer than it says");
  return plan_.pieces();
}

}  // namespace mooncake::node
