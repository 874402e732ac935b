import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufOutputStream;
import io.netty.buffer.Unpooled;
import io.pravega.shared.protocol.netty.CommandDecoder;
import io.pravega.shared.protocol.netty.WireCommand;
import io.pravega.shared.protocol.netty.WireCommands;
import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;

/**
 * Reads frames from its input with Pravega's own codec, and writes each again to its output. A
 * frame that the codec refuses is answered by one of type REFUSED with the reason.
 */
final class RoundTrip {
    private static final int REFUSED = 0x7FFFFFFF;

    private RoundTrip() {}

    public static void main(String[] arguments) throws IOException {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        DataOutputStream out = new DataOutputStream(new BufferedOutputStream(System.out));
        while (true) {
            int type;
            try {
                type = in.readInt();
            } catch (EOFException end) {
                return;
            }
            byte[] payload = new byte[in.readInt()];
            in.readFully(payload);
            answer(type, payload, out);
            out.flush();
        }
    }

    private static void answer(int type, byte[] payload, DataOutputStream out) throws IOException {
        ByteBuf written = Unpooled.buffer();
        try {
            ByteBuf frame = Unpooled.buffer().writeInt(type).writeInt(payload.length);
            WireCommand command = CommandDecoder.parseCommand(frame.writeBytes(payload));
            command.writeFields(new ByteBufOutputStream(written));
            if (command instanceof WireCommands.AppendBlock) {
                // Its encoder writes the data itself, as they come.
                written.writeBytes(((WireCommands.AppendBlock) command).getData());
            }
            type = command.getType().getCode();
        } catch (IOException | RuntimeException | OutOfMemoryError refused) {
            // It makes room for as many items as a list says that it has.
            type = REFUSED;
            written.clear().writeBytes(refused.toString().getBytes(StandardCharsets.UTF_8));
        }
        out.writeInt(type);
        out.writeInt(written.readableBytes());
        written.readBytes(out, written.readableBytes());
    }
}
