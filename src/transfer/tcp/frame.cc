#include "transfer/tcp/frame.h"

#include "transfer/transport.h"

namespace mooncake::transfer {

bool IsSane(const FrameHeader& header, bool reply) {
  return header.magic == kFrameMagic && header.major == kProtocolMajor &&
         ((header.flags & kFrameReply) != 0) == reply && header.message_size <= kMessageSizeMax &&
         header.payload_size <= kPayloadSizeMax;
}

}  // namespace mooncake::transfer
