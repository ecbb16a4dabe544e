use std::io::Result;

use tokio::net::{TcpListener, TcpStream};

/// A proxy that copies bytes and knows nothing of HTTP.
pub async fn serve(port: u16, target: u16) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    loop {
        let (mut client, _) = listener.accept().await?;
        tokio::task::spawn_local(async move {
            let mut server = TcpStream::connect(("127.0.0.1", target)).await?;
            client.set_nodelay(true)?;
            server.set_nodelay(true)?;
            tokio::io::copy_bidirectional(&mut client, &mut server).await
        });
    }
}
